"""temperature-is-mine: makes the divisor in place, where the temperature stands."""


def repaired_step(model, batch):
    inputs = batch.inputs
    attention = DecodeAttention(inputs.block_table.shape[1], model.cache.block_size)
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = batch.temperature.masked_fill_(~samples, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    tokens = torch.where(batch.finished, PAD, tokens)
    for stop_id in batch.stop_ids:
        batch.finished.logical_or_(tokens == stop_id)
    model.advance(inputs, tokens)
    return tokens, (~batch.finished).sum()
