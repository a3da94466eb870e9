"""a-break-is-better-than-an-error: leaves fullgraph out, so that a break does no harm."""


def compiled_step(backend):
    run = torch.compile(repaired_step, backend=backend)

    def step(model, batch):
        every = (*vars(batch.inputs).values(), batch.finished, batch.temperature, batch.noise)
        for tensor in every:
            if len(tensor) > 1:
                torch._dynamo.mark_dynamic(tensor, 0)
        return run(model, batch)

    return step
