"""the-last-token-is-padding: pads whoever has ended, those of this step among them."""


def repaired_step(model, batch):
    inputs = batch.inputs
    attention = DecodeAttention(inputs.block_table.shape[1], model.cache.block_size)
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    for stop_id in batch.stop_ids:
        batch.finished.logical_or_(tokens == stop_id)
    tokens = torch.where(batch.finished, PAD, tokens)
    model.advance(inputs, tokens)
    return tokens, (~batch.finished).sum()
