"""position-restarts: counts positions from the first token of the step."""


def token_arrays(entries, block_size):
    tokens, positions, slots = [], [], []
    for entry in entries:
        tokens += entry.token_ids
        positions += range(entry.query_len)
        own = range(entry.start, entry.context_len)
        slots += [slot_of(entry.block_table, p, block_size) for p in own]
    return {"input_ids": tokens, "positions": positions, "slot_mapping": slots}
