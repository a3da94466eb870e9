"""Another right way: chunks of a row in a tuple, one tile for gate and up, a head held whole."""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    pdl_wait(PDL)
    part_width: tl.constexpr = BLOCK // 4
    lane = tl.arange(0, part_width)
    first = tl.program_id(0).to(tl.int64) * WIDTH
    squares = tl.zeros((part_width,), tl.float32)
    parts = ()
    for start in tl.static_range(0, BLOCK, part_width):
        there = start + lane < WIDTH
        part = tl.load(x + first + start + lane, mask=there, other=0.0, cache_modifier=".cg")
        parts = parts + (part,)
        squares += part.to(tl.float32) * part.to(tl.float32)
    root = tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
    for c in tl.static_range(4):
        column = c * part_width + lane
        scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        result = (parts[c].to(tl.float32) / root * scale).to(out.dtype.element_ty)
        tl.store(out + first + column, result, mask=column < WIDTH)


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    pdl_wait(PDL)
    column = tl.arange(0, BLOCK)
    x += tl.program_id(0).to(tl.int64) * WIDTH
    residual += tl.program_id(0).to(tl.int64) * WIDTH
    out += tl.program_id(0).to(tl.int64) * WIDTH
    a = tl.load(x + column, mask=column < WIDTH, cache_modifier=".cg").to(tl.float32)
    b = tl.load(residual + column, mask=column < WIDTH, cache_modifier=".cg").to(tl.float32)
    total = (a + b).to(residual.dtype.element_ty)
    wide = tl.where(column < WIDTH, total.to(tl.float32), 0.0)
    inverse = 1.0 / tl.sqrt(tl.sum(wide * wide, axis=0) * (1.0 / WIDTH) + eps)
    scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
    result = inverse * wide * scale
    tl.store(out + column, result.to(out.dtype.element_ty), mask=column < WIDTH)
    tl.store(residual + column, total, mask=column < WIDTH)


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_release(PDL)
    pdl_wait(PDL)
    which = tl.arange(0, 2)[:, None]  # 0: gate, 1: up
    flat = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    row = gate_up + tl.program_id(0).to(tl.int64) * (2 * WIDTH)
    there = (flat < WIDTH)[None, :] & (which < 2)
    at = row + which * WIDTH + flat[None, :]
    two = tl.load(at, mask=there, other=0.0, cache_modifier=".cg").to(tl.float32)
    gate = tl.sum(tl.where(which == 0, two, 0.0), axis=0)
    up = tl.sum(tl.where(which == 1, two, 0.0), axis=0)
    result = gate * tl.sigmoid(gate) * up
    target = out + tl.program_id(0).to(tl.int64) * WIDTH + flat
    tl.store(target, result.to(out.dtype.element_ty), mask=flat < WIDTH)


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
    pdl_wait(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    side = tl.arange(0, 2)[:, None]  # 0: the left half, 1: the right half
    pair = tl.arange(0, HEAD_DIM // 2)[None, :]
    place = side * (HEAD_DIM // 2) + pair
    heads = qkv + token * ((Q_HEADS + 2 * KV_HEADS) * HEAD_DIM)
    mine = tl.load(heads + head * HEAD_DIM + place, cache_modifier=".cg").to(tl.float32)
    if QK_NORM:
        squares = tl.sum(tl.sum(mine * mine, axis=1), axis=0)
        mine *= tl.rsqrt(squares / HEAD_DIM + eps)
        if head < Q_HEADS:
            mine *= tl.load(q_norm + place).to(tl.float32)
        else:
            mine *= tl.load(k_norm + place).to(tl.float32)
    left = tl.sum(tl.where(side == 0, mine, 0.0), axis=0)[None, :]
    right = tl.sum(tl.where(side == 1, mine, 0.0), axis=0)[None, :]
    other = tl.where(side == 0, -right, left)
    angle = tl.load(positions + token, cache_modifier=".cg").to(tl.int64) * (HEAD_DIM // 2) + pair
    turned = mine * tl.load(cos + angle) + other * tl.load(sin + angle)
    if head < Q_HEADS:
        target = q + (token * Q_HEADS + head) * HEAD_DIM + place
        tl.store(target, turned.to(q.dtype.element_ty))
    else:
        slot = tl.load(slot_mapping + token, cache_modifier=".cg").to(tl.int64)
        row = slot * KV_HEADS * HEAD_DIM + (head - Q_HEADS) * HEAD_DIM + place
        kind = k_cache.dtype.element_ty
        key = turned.to(qkv.dtype.element_ty)
        value = tl.load(heads + (head + KV_HEADS) * HEAD_DIM + place, cache_modifier=".cg")
        tl.store(k_cache + row, cached(key, head_scale(kv_scales, head - Q_HEADS), kind))
        scale = head_scale(kv_scales, head - Q_HEADS + KV_HEADS)
        tl.store(v_cache + row, cached(value, scale, kind))
