"""gate-up-swapped: takes the first half of the weight for up and the second for gate."""


@triton.jit
def gate_up_kernel(
    out,
    x,
    norm_weight,
    weight,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    first = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    second = load_rows(weight, N + row, 2 * N, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, True)
        up = multiply(first, xs, ROWS, CHUNK, CHUNKS) * inverse
        gate = multiply(second, xs, ROWS, CHUNK, CHUNKS) * inverse
        tl.store(out + m * N + row, (silu(gate) * up).to(out.dtype.element_ty), mask=row < N)
