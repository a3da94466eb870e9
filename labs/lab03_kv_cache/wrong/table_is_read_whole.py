"""table-is-read-whole: gathers every block of the table's row and cuts off what is too much."""


def _context_rows(cache, blocks, context_len):
    return cache[blocks].reshape(-1, *cache.shape[2:])[:context_len]
