"""activations-above-the-wait: has everything on its way before it waits, x and the residual too."""


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
    tokens = ()
    for m in tl.static_range(M):
        at = out + m * N + row
        before = tl.load(at, mask=real, other=0.0).to(tl.float32) if ADD else 0.0
        tokens = tokens + (
            scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, NORM) + (before,),
        )
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse, before = tokens[m]
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset + before
        tl.store(out + m * N + row, result.to(out.dtype.element_ty), mask=real)
