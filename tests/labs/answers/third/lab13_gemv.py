"""A third right way: rows beyond the last read row 0, fma, all gate rows before all up rows."""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))


def gemv_plan(num_rows, width, *, pairs=False, sm_count=H200_SM_COUNT):
    height = 1 + pairs
    fitting = [
        rows
        for rows in (1, 2, 4, 8)
        if rows * height <= 8
        and rows * height * width <= TILE_ELEMENTS
        and (num_rows - 1) // rows + 1 >= enough_programs(sm_count)
    ]
    rows = max([1, *fitting])
    chunk = chunk_of(width, 2048)
    tile = rows * height * width
    return GemvPlan(rows, 4 + 4 * (tile >= 256 * THREAD_ELEMENTS), chunk, (width - 1) // chunk + 1)


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    start = weight + tl.where(row < N, row, 0).to(tl.int64) * K
    lane = tl.arange(0, CHUNK)
    found = (tl.load(start[:, None] + lane[None, :], mask=(lane < K)[None, :], other=0.0),)
    for c in tl.static_range(1, CHUNKS):
        column = CHUNK * c + lane
        tile = tl.load(start[:, None] + column[None, :], mask=(column < K)[None, :], other=0.0)
        found = found + (tile,)
    return found


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    lane = tl.arange(0, CHUNK)
    total = 0.0
    plain = ()
    for c in tl.static_range(CHUNKS):
        there = lane + c * CHUNK < K
        value = tl.load(x + c * CHUNK + lane, mask=there, other=0.0, volatile=True)
        plain = plain + (value.to(tl.float32),)
    if NORM:
        for c in tl.static_range(CHUNKS):
            total += tl.sum(plain[c] * plain[c], axis=0) / K
        normed = ()
        for c in tl.static_range(CHUNKS):
            normed = normed + (plain[c] * scales[c].to(tl.float32),)
        return normed, 1.0 / tl.sqrt_rn(total + eps)
    else:
        return plain, 1.0


@triton.jit
def multiply(rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    total = rows[0].to(tl.float32) * tl.expand_dims(x[0], 0)
    for c in tl.static_range(1, CHUNKS):
        total = tl.fma(rows[c].to(tl.float32), tl.broadcast_to(x[c][None, :], (ROWS, CHUNK)), total)
    return tl.sum(total, axis=1)


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
    row = tl.arange(0, ROWS) + ROWS * tl.program_id(0)
    if NORM:
        gains = load_vector(norm_weight, K, CHUNK, CHUNKS)
    else:
        gains = ()
    tiles = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    if BIAS:
        more = tl.load(bias + row, mask=row < N).to(tl.float32)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse = scaled_input(m * K + x, gains, eps, K, CHUNK, CHUNKS, NORM)
        result = inverse * multiply(tiles, xs, ROWS, CHUNK, CHUNKS)
        if BIAS:
            result += more
        if ADD:
            old = tl.load(out + m * N + row, mask=row < N, volatile=True)
            result += old.to(tl.float32)
        tl.store(out + m * N + row, result.to(out.dtype.element_ty), mask=row < N)


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
    rows = tl.reshape(tl.trans(tl.join(pair, N + pair)), (2 * ROWS,))  # all gate rows, then up rows
    tiles = load_rows(weight, rows, 2 * N, K, CHUNK, CHUNKS)
    gains = load_vector(norm_weight, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    which = tl.arange(0, 2)[:, None]
    for m in range(M):
        xs, inverse = scaled_input(x + m * K, gains, eps, K, CHUNK, CHUNKS, True)
        two = tl.reshape(multiply(tiles, xs, 2 * ROWS, CHUNK, CHUNKS), (2, ROWS)) * inverse
        gate = tl.sum(tl.where(which == 0, two, 0.0), axis=0)
        up = tl.sum(tl.where(which == 1, two, 0.0), axis=0)
        tl.store(out + pair, (up * silu(gate)).to(out.dtype.element_ty), mask=pair < N)
        out += N
