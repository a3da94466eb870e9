"""moved-out-is-gone: reads the longest context before the graph begins, and hands in a number."""


def repaired_step(model, batch, blocks=None):
    inputs = batch.inputs
    attention = DecodeAttention(blocks or inputs.block_table.shape[1], model.cache.block_size)
    logits, _ = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    tokens = torch.where(batch.finished, PAD, tokens)
    for stop_id in batch.stop_ids:
        batch.finished.logical_or_(tokens == stop_id)
    model.advance(inputs, tokens)
    return tokens, (~batch.finished).sum()


def compiled_step(backend):
    run = torch.compile(repaired_step, backend=backend, fullgraph=True)

    def step(model, batch):
        every = (*vars(batch.inputs).values(), batch.finished, batch.temperature, batch.noise)
        for tensor in every:
            if len(tensor) > 1:
                torch._dynamo.mark_dynamic(tensor, 0)
        longest = int(batch.inputs.context_lens.max())
        return run(model, batch, -(-longest // model.cache.block_size))

    return step
