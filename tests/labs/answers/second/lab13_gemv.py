"""Another right way: masks for rows, a sum a chunk, a search for the plan, two tiles a pair."""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))


def gemv_plan(num_rows, width, *, pairs=False, sm_count=H200_SM_COUNT):
    height = 2 if pairs else 1
    rows = 1
    for more in (2, 4, 8):
        small = more * height * width <= TILE_ELEMENTS
        enough = (num_rows + more - 1) // more >= enough_programs(sm_count)
        if more * height <= 8 and small and enough:
            rows = more
    chunk = chunk_of(width, 2048)
    each = rows * height * width / 256
    return GemvPlan(
        rows=rows,
        warps=4 if each < THREAD_ELEMENTS else 8,
        chunk=chunk,
        chunks=(width + chunk - 1) // chunk,
    )


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    column = tl.arange(0, CHUNK)
    start = weight + row.to(tl.int64)[:, None] * K
    tiles = ()
    for c in tl.static_range(CHUNKS):
        there = (row < N)[:, None] & (column < K - c * CHUNK)[None, :]
        tiles = tiles + (tl.load(start + (c * CHUNK + column)[None, :], mask=there, other=0.0),)
    return tiles


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    total = 0.0
    scaled = ()
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        value = tl.load(x + column, mask=column < K, other=0.0, cache_modifier=".cg").to(tl.float32)
        if NORM:
            total += tl.sum(value * value, axis=0)
            scaled = scaled + (value * scales[c].to(tl.float32),)
        else:
            scaled = scaled + (value,)
    inverse = 1.0 / tl.sqrt(total / K + eps) if NORM else 1.0
    return scaled, inverse


@triton.jit
def multiply(rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    total = tl.zeros((ROWS,), tl.float32)
    for c in tl.static_range(CHUNKS):
        total += tl.sum(rows[c].to(tl.float32) * x[c][None, :], axis=1)
    return total


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
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    start = tl.zeros((ROWS,), tl.float32)
    scales = ()
    if NORM:
        scales = load_vector(norm_weight, K, CHUNK, CHUNKS)
    if BIAS:
        start += tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32)
    tiles = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    for _ in range(M):
        xs, inverse = scaled_input(x, scales, eps, K, CHUNK, CHUNKS, NORM)
        total = start + inverse * multiply(tiles, xs, ROWS, CHUNK, CHUNKS)
        if ADD:
            total += tl.load(out + row, mask=row < N, other=0.0, cache_modifier=".cg").to(
                tl.float32
            )
        tl.store(out + row, total.to(out.dtype.element_ty), mask=row < N)
        x += K
        out += N


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
    pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS)
    gate_rows = load_rows(weight, pair, N, K, CHUNK, CHUNKS)
    up_rows = load_rows(weight + N * K, pair, N, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, True)
        gate = inverse * multiply(gate_rows, xs, ROWS, CHUNK, CHUNKS)
        up = inverse * multiply(up_rows, xs, ROWS, CHUNK, CHUNKS)
        done = up * gate / (1 + tl.exp(-gate))
        tl.store(out + m * N + pair, done.to(out.dtype.element_ty), mask=pair < N)
