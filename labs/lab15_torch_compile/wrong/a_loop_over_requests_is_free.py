"""a-loop-over-requests-is-free: believes that a loop stays a loop in the trace."""


def repaired_step(model, batch):
    inputs = batch.inputs
    attention = DecodeAttention(inputs.block_table.shape[1], model.cache.block_size)
    logits, tokens = model.head(model.body(inputs, attention), inputs)
    samples = batch.temperature > 0
    divisor = torch.where(samples, batch.temperature, 1.0)[:, None]
    tokens = (logits / divisor + batch.noise * samples[:, None]).argmax(-1).int()
    stops = torch.tensor(batch.stop_ids, device=tokens.device)
    rows = []
    for row in range(len(tokens)):
        token = torch.where(batch.finished[row], PAD, tokens[row])
        batch.finished[row].logical_or_((token == stops).any())
        rows.append(token)
    tokens = torch.stack(rows)
    model.advance(inputs, tokens)
    return tokens, (~batch.finished).sum()
