"""item-is-traced: believes that .item() is an op as any other, and helps Dynamo to believe it."""


def over_calls(function, calls, **options):
    torch.compiler.reset()
    watch = Watch()
    served = []
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(function, backend=watch, **options)
        for arguments in calls:
            graphs, ran = len(watch.graphs), len(watch.ran)
            compiled(*arguments)
            served.append(Call(tuple(watch.graphs[graphs:]), tuple(watch.ran[ran:])))
    return served
