"""A third right way: maps and filters, a sampler that does the choosing, marks that may fail."""


class Watch:
    def __call__(self, graph, example_inputs):
        def run(*inputs):
            recorder = OpRecorder()
            recorder.__enter__()
            try:
                return graph.forward(*inputs)
            finally:
                recorder.__exit__(None, None, None)
                self.ran.append(tuple(o.name for o in recorder.ops))

        self.graphs.append(graph)
        return run


class Call:
    @property
    def how(self):
        return {(False, False): "eager", (False, True): "reused"}.get(
            (bool(self.graphs), bool(self.ran)), "compiled"
        )


def over_calls(function, calls, **options):
    torch.compiler.reset()
    watch = Watch()
    compiled = torch.compile(function, backend=watch, **options)

    def one(arguments):
        marks = len(watch.graphs), len(watch.ran)
        compiled(*arguments)
        return Call(tuple(watch.graphs)[marks[0] :], tuple(watch.ran)[marks[1] :])

    return list(map(one, calls))


def graph_breaks(calls):
    met, breaks = set(), []
    for call in calls:
        for broke in filter(None, map(break_of, call.graphs)):
            if broke.place in met:
                continue
            met.add(broke.place)
            breaks.append(broke)
    return breaks


def launches(call, mode):
    if call.ran == ():
        raise ValueError(call)
    if mode == EAGER:
        return len([name for ops in call.ran for name in ops])
    try:
        graphs = torch._inductor.list_mode_options()[mode].get("triton.cudagraphs")
    except KeyError:
        raise ValueError("no such mode") from None
    return sum(1 if graphs else _at_best(ops) for ops in call.ran)


def _at_best(ops):
    text = "".join("P" if name in PRODUCTS else "." for name in ops)
    return text.count("P") + len([stretch for stretch in text.split("P") if stretch])


def repaired_step(model, batch):
    inputs, cache = batch.inputs, model.cache
    attention = DecodeAttention(model.end_of_context(inputs) // cache.block_size, cache.block_size)
    hidden = model.body(inputs, attention)

    def sampler(logits, _context_lens):
        cold = batch.temperature == 0
        scores = logits / (batch.temperature + cold.float()).unsqueeze(1)
        scores = torch.where(cold.unsqueeze(1), logits, scores + batch.noise)
        chosen = scores.max(dim=1).indices.int()
        return (chosen * ~batch.finished + PAD * batch.finished).int()

    _, tokens = model.next_step(hidden, inputs, sampler)
    ended = (tokens.unsqueeze(0) == tokens.new_tensor(batch.stop_ids).unsqueeze(1)).any(0)
    batch.finished[:] = batch.finished | ended
    return tokens, len(tokens) - batch.finished.sum()


def compiled_step(backend):
    compiled = torch.compile(fullgraph=True, backend=backend)(repaired_step)

    def call(model, batch):
        inputs = batch.inputs
        for part in (batch, inputs):
            for tensor in filter(torch.is_tensor, vars(part).values()):
                torch._dynamo.maybe_mark_dynamic(tensor, 0)
        return compiled(model, batch)

    return call
