"""rows-fit-into-int32: multiplies first and casts then."""


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0)
    return (block * BLOCK_SIZE + token % BLOCK_SIZE).to(tl.int64)
