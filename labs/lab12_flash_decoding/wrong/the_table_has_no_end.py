"""the-table-has-no-end: loads an entry for every token of the tile, since rows outside are masked later."""


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + token // BLOCK_SIZE).to(tl.int64)
    return block * BLOCK_SIZE + token % BLOCK_SIZE
