"""the-next-input-is-a-result: returns the input of the next step, which holds the new tokens."""


def repaired_step(model: Model, batch: Batch) -> tuple[Tensor, Tensor]:
    inputs = batch.inputs
    attention = DecodeAttention(inputs.block_table.shape[1], model.cache.block_size)
    logits, _ = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    tokens = torch.where(batch.finished, PAD, tokens)
    for stop_id in batch.stop_ids:
        batch.finished.logical_or_(tokens == stop_id)
    model.advance(inputs, tokens)
    return inputs.input_ids, (~batch.finished).sum()
