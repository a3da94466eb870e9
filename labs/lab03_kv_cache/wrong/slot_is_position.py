"""slot-is-position: puts each token into the row of the cache that its position names."""


def token_arrays(entries, block_size):
    tokens = [token for entry in entries for token in entry.token_ids]
    positions = [p for entry in entries for p in range(entry.start, entry.context_len)]
    return {"input_ids": tokens, "positions": positions, "slot_mapping": positions}
