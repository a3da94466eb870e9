"""Another right way: a class for what runs, slices by count, a walk for kernels, marks by loop."""


class Watch:
    def __call__(self, graph, example_inputs):
        self.graphs += [graph]

        def noted(*given):
            with OpRecorder() as recorder:
                answer = graph(*given)
            names = [op.name for op in recorder.ops]
            self.ran += [tuple(names)]
            return answer

        return noted


class Call:
    @property
    def how(self):
        if not self.ran:
            return "eager"
        return "reused" if len(self.graphs) == 0 else "compiled"


def over_calls(function, calls, **options):
    torch._dynamo.reset()
    served = []
    watch = Watch()
    run = torch.compile(backend=watch, **options)(function)
    for arguments in calls:
        watch.graphs, watch.ran = [], []
        run(*arguments)
        served += [Call(graphs=tuple(watch.graphs), ran=tuple(watch.ran))]
    return served


def graph_breaks(calls):
    every = [break_of(graph) for call in calls for graph in call.graphs]
    met = [one for one in every if one is not None]
    places = [one.place for one in met]
    return [one for i, one in enumerate(met) if one.place not in places[:i]]


def launches(call, mode):
    if mode != EAGER and mode not in torch._inductor.list_mode_options():
        raise ValueError(f"there is no such way to run: {mode}")
    if len(call.ran) == 0:
        raise ValueError("unknown")
    options = {} if mode == EAGER else torch._inductor.list_mode_options()[mode]
    if options.get("triton.cudagraphs", False):
        return sum(1 for _ in call.ran)
    count = 0
    for ops in call.ran:
        fusible = False
        for name in ops:
            alone = mode == EAGER or name in PRODUCTS
            count += alone or not fusible
            fusible = not alone
    return count


def repaired_step(model, batch):
    table = batch.inputs.block_table
    hidden = model.body(batch.inputs, DecodeAttention(table.size(1), model.cache.keys[0].size(1)))
    logits, likely = model.head(hidden, batch.inputs)
    drawn = (logits / batch.temperature[:, None] + batch.noise).argmax(dim=1)
    tokens = torch.where(batch.temperature > 0, drawn.to(torch.int32), likely)
    tokens = tokens.masked_fill(batch.finished, PAD)
    stops = torch.tensor(batch.stop_ids, dtype=torch.int32, device=tokens.device)
    batch.finished.copy_(batch.finished | torch.isin(tokens, stops))
    model.advance(batch.inputs, tokens)
    return tokens, torch.logical_not(batch.finished).count_nonzero()


def compiled_step(backend):
    compiled = torch.compile(repaired_step, backend=backend, fullgraph=True)

    def of_any_size(model, batch):
        if batch.finished.numel() >= 2:
            for owner in (batch, batch.inputs):
                for value in vars(owner).values():
                    if isinstance(value, torch.Tensor):
                        torch._dynamo.mark_dynamic(value, 0)
        return compiled(model, batch)

    return of_any_size
