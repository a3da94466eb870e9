"""what-was-written-is-in-l1: loads x like a weight: what is read below the wait is new in any case."""


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    raw = ()
    for c in tl.static_range(CHUNKS):  # every load before any use
        column = c * CHUNK + tl.arange(0, CHUNK)
        raw = raw + (tl.load(x + column, mask=column < K, other=0.0),)
    scaled = ()
    squares = tl.zeros((CHUNK,), tl.float32)
    for c in tl.static_range(CHUNKS):
        value = raw[c].to(tl.float32)  # type: ignore[var-annotated]
        if NORM:
            squares += value * value
            value = value * scales[c].to(tl.float32)
        scaled = scaled + (value,)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
    return scaled, inverse
