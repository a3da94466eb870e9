"""mean-of-the-padding: divides the squares by all columns that the chunks have."""


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    scaled = ()
    squares = tl.zeros((CHUNK,), tl.float32)
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(x + column, mask=column < K, other=0.0).to(tl.float32)
        if NORM:
            squares += value * value
            value = value * scales[c].to(tl.float32)
        scaled = scaled + (value,)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / (CHUNK * CHUNKS) + eps)
    return scaled, inverse
