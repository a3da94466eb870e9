"""widened-where-it-is-loaded: widens bf16 right after the load, as every kernel does with x."""


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    chunks = ()
    real = tl.minimum(row, N - 1).to(tl.int64)
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        at = weight + real[:, None] * K + column[None, :]
        tile = tl.load(at, mask=(column < K)[None, :], other=0.0)
        chunks = chunks + (tile.to(tl.float32),)
    return chunks
