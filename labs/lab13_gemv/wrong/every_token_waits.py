"""every-token-waits: waits again for each token."""


@triton.jit
def linear_kernel(
    out,
    x,
    norm_weight,
    weight,
    bias,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < N
    rows = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS) if NORM else ()
    offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    for m in tl.static_range(M):
        pdl_wait(PDL)
        at = out + m * N + row
        before = 0.0
        if ADD:
            before = tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32)
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, NORM)
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset + before
        tl.store(at, result.to(out.dtype.element_ty), mask=real)
