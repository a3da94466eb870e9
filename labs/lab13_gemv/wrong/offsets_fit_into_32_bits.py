"""offsets-fit-into-32-bits: multiplies row numbers and widths as they are, int32."""


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    chunks = ()
    real = tl.minimum(row, N - 1)
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        at = weight + real[:, None] * K + column[None, :]
        if CHUNK * CHUNKS == K:
            tile = tl.load(at, eviction_policy="evict_first")
        else:
            inside = (column < K)[None, :]
            tile = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        chunks = chunks + (tile,)
    return chunks
