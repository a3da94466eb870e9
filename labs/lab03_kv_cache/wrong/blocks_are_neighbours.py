"""blocks-are-neighbours: reads on from the request's first block."""


def _context_rows(cache, blocks, context_len):
    rows = cache.reshape(-1, *cache.shape[2:])
    first = blocks[0] * cache.shape[1]
    return rows[first : first + context_len]
