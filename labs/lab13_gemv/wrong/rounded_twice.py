"""rounded-twice: makes the product a bf16 vector, as the unfused kernel had it, and adds to that."""


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
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + row
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, NORM)
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset
        result = result.to(out.dtype.element_ty)
        if ADD:
            before = tl.load(at, mask=real, other=0.0).to(tl.float32)
            result = (result.to(tl.float32) + before).to(out.dtype.element_ty)
        tl.store(at, result, mask=real)
