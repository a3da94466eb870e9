"""rows-always-divide: stores all of a program's rows, whether the weight has them or not."""


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
    rows = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS) if NORM else ()
    offset = tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32) if BIAS else 0.0
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + row
        before = tl.load(at, mask=row < N, other=0.0).to(tl.float32) if ADD else 0.0
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, NORM)
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset + before
        tl.store(at, result.to(out.dtype.element_ty))
