"""norm-per-chunk: norms every chunk by its own root mean square."""


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    scaled = ()
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(x + column, mask=column < K, other=0.0).to(tl.float32)
        if NORM:
            inside = tl.minimum(CHUNK, K - c * CHUNK)
            inverse = tl.rsqrt(tl.sum(value * value, axis=0) / inside + eps)
            value = value * inverse * scales[c].to(tl.float32)
        scaled = scaled + (value,)
    return scaled, 1.0
