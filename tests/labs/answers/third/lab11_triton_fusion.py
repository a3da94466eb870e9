"""A third right way: helpers for loads and the norm, the row as a square tile, early returns."""


@triton.jit
def fresh(pointer, mask):
    """What the step has just written, in float32; volatile loads do not look into L1 either."""
    return tl.load(pointer, mask=mask, other=0.0, volatile=True).to(tl.float32)


@triton.jit
def store_normed(out, wide, weight, eps, at, column, WIDTH: tl.constexpr):
    mean = tl.sum(wide * wide) * (1.0 / WIDTH)
    gains = tl.load(weight + column, mask=column < WIDTH)
    normed = wide / tl.sqrt_rn(mean + eps) * gains.to(tl.float32)
    tl.store(out + at, normed.to(out.dtype.element_ty), mask=column < WIDTH)


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    column = tl.arange(0, 4)[:, None] * (BLOCK // 4) + tl.arange(0, BLOCK // 4)[None, :]
    at = tl.cast(tl.program_id(0), tl.int64) * WIDTH + column
    pdl_wait(PDL)
    store_normed(out, fresh(x + at, column < WIDTH), weight, eps, at, column, WIDTH)


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    pdl_wait(PDL)
    column = tl.arange(0, 2)[:, None] + 2 * tl.arange(0, BLOCK // 2)[None, :]
    at = tl.cast(tl.program_id(0), tl.int64) * WIDTH + column
    there = column < WIDTH
    total = (fresh(x + at, there) + fresh(residual + at, there)).to(residual.dtype.element_ty)
    store_normed(out, total.to(tl.float32), weight, eps, at, column, WIDTH)
    tl.store(residual + at, total, mask=there)


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_release(PDL)
    pdl_wait(PDL)
    first = tl.program_id(1) * BLOCK
    gate_up += tl.cast(tl.program_id(0), tl.int64) * WIDTH * 2 + first
    out += tl.cast(tl.program_id(0), tl.int64) * WIDTH + first
    lane = tl.arange(0, BLOCK)
    there = lane < WIDTH - first
    up = tl.load(gate_up + WIDTH + lane, mask=there, volatile=True).to(tl.float32)
    gate = tl.load(gate_up + lane, mask=there, volatile=True).to(tl.float32)
    tl.store(out + lane, (up * (gate / (1 + tl.exp(-gate)))).to(out.dtype.element_ty), mask=there)


@triton.jit
def rope_kv_write_kernel(
    q,
    k_cache,
    v_cache,
    kv_scales,
    qkv,
    positions,
    slot_mapping,
    cos,
    sin,
    q_norm,
    k_norm,
    eps,
    Q_HEADS: tl.constexpr,
    KV_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    QK_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    pdl_release(PDL)
    half: tl.constexpr = HEAD_DIM // 2
    d = tl.arange(0, half)
    if QK_NORM:
        if tl.program_id(1) < Q_HEADS:
            gains = tl.load(q_norm + d), tl.load(q_norm + half + d)
        else:
            gains = tl.load(k_norm + d), tl.load(k_norm + half + d)
    pdl_wait(PDL)
    token = tl.cast(tl.program_id(0), tl.int64)
    head = tl.program_id(1)
    start = (token * (Q_HEADS + KV_HEADS + KV_HEADS) + head) * HEAD_DIM
    a = tl.load(qkv + start + d, volatile=True).to(tl.float32)
    b = tl.load(qkv + start + half + d, volatile=True).to(tl.float32)
    if QK_NORM:
        length = tl.sqrt(tl.sum(a * a + b * b) / HEAD_DIM + eps)
        a = a / length * gains[0].to(tl.float32)
        b = b / length * gains[1].to(tl.float32)
    row = tl.cast(tl.load(positions + token, volatile=True), tl.int64) * half
    c, s = tl.load(cos + row + d), tl.load(sin + row + d)
    kind = qkv.dtype.element_ty
    turned_a, turned_b = (c * a - s * b).to(kind), (s * a + c * b).to(kind)
    if head < Q_HEADS:
        tl.store(q + (token * Q_HEADS + head) * HEAD_DIM + d, turned_a)
        tl.store(q + (token * Q_HEADS + head) * HEAD_DIM + half + d, turned_b)
        return
    kv = head - Q_HEADS
    slot = tl.cast(tl.load(slot_mapping + token, volatile=True), tl.int64)
    place = (slot * KV_HEADS + kv) * HEAD_DIM + d
    stored = k_cache.dtype.element_ty
    k_scale, v_scale = head_scale(kv_scales, kv), head_scale(kv_scales, kv + KV_HEADS)
    value = qkv + start + KV_HEADS * HEAD_DIM + d
    for part in tl.static_range(2):
        key = turned_a if part == 0 else turned_b
        tl.store(k_cache + place + part * half, cached(key, k_scale, stored))
        v = tl.load(value + part * half, cache_modifier=".cv")
        tl.store(v_cache + place + part * half, cached(v, v_scale, stored))
