"""Another right way: rows in chunks and two passes, one tile for gate and up, a head held whole."""


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    pdl_wait(PDL)
    lane = tl.arange(0, 16)
    first = tl.program_id(0) * WIDTH
    squares = tl.zeros((16,), tl.float32)
    for start in range(0, WIDTH, 16):
        part = tl.load(x + first + start + lane, mask=start + lane < WIDTH, other=0.0)
        part = part.to(tl.float32)
        squares += part * part
    root = tl.sqrt(tl.sum(squares, axis=0) / WIDTH + eps)
    for start in range(0, WIDTH, 16):
        there = start + lane < WIDTH
        part = tl.load(x + first + start + lane, mask=there, other=0.0).to(tl.float32)
        scale = tl.load(weight + start + lane, mask=there, other=0.0).to(tl.float32)
        result = (part / root * scale).to(out.dtype.element_ty)
        tl.store(out + first + start + lane, result, mask=there)


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    pdl_release(PDL)
    pdl_wait(PDL)
    lane = tl.arange(0, 16)
    x += tl.program_id(0) * WIDTH
    residual += tl.program_id(0) * WIDTH
    out += tl.program_id(0) * WIDTH
    squares = 0.0
    for start in range(0, WIDTH, 16):
        column = start + lane
        a = tl.load(x + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        b = tl.load(residual + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        total = (a + b).to(residual.dtype.element_ty)
        tl.store(residual + column, total, mask=column < WIDTH)
        squares += tl.sum(total.to(tl.float32) * total.to(tl.float32), axis=0)
    inverse = 1.0 / tl.sqrt(squares / WIDTH + eps)
    for start in range(0, WIDTH, 16):
        column = start + lane
        total = tl.load(residual + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        scale = tl.load(weight + column, mask=column < WIDTH, other=0.0).to(tl.float32)
        tl.store(
            out + column, (inverse * total * scale).to(out.dtype.element_ty), mask=column < WIDTH
        )


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    pdl_release(PDL)
    pdl_wait(PDL)
    which = tl.arange(0, 2)[:, None]  # 0: gate, 1: up
    column = (tl.program_id(1) * BLOCK + tl.arange(0, BLOCK))[None, :]
    row = gate_up + tl.program_id(0) * (2 * WIDTH)
    there = (column < WIDTH) & (which < 2)
    two = tl.load(row + which * WIDTH + column, mask=there, other=0.0).to(tl.float32)
    gate = tl.sum(tl.where(which == 0, two, 0.0), axis=0)
    up = tl.sum(tl.where(which == 1, two, 0.0), axis=0)
    flat = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    result = gate * tl.sigmoid(gate) * up
    target = out + tl.program_id(0) * WIDTH + flat
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
    token = tl.program_id(0)
    head = tl.program_id(1)
    d = tl.arange(0, HEAD_DIM)
    mate = (d + HEAD_DIM // 2) % HEAD_DIM
    sign = tl.where(d < HEAD_DIM // 2, -1.0, 1.0)
    heads = qkv + token * (Q_HEADS + 2 * KV_HEADS) * HEAD_DIM
    mine = tl.load(heads + head * HEAD_DIM + d).to(tl.float32)
    other = tl.load(heads + head * HEAD_DIM + mate).to(tl.float32)
    if QK_NORM:
        inverse = tl.rsqrt(tl.sum(mine * mine, axis=0) / HEAD_DIM + eps)
        if head < Q_HEADS:
            mine *= inverse * tl.load(q_norm + d).to(tl.float32)
            other *= inverse * tl.load(q_norm + mate).to(tl.float32)
        else:
            mine *= inverse * tl.load(k_norm + d).to(tl.float32)
            other *= inverse * tl.load(k_norm + mate).to(tl.float32)
    angle = tl.load(positions + token) * (HEAD_DIM // 2) + d % (HEAD_DIM // 2)
    turned = mine * tl.load(cos + angle) + sign * other * tl.load(sin + angle)
    if head < Q_HEADS:
        target = q + (token * Q_HEADS + head) * HEAD_DIM + d
        tl.store(target, turned.to(q.dtype.element_ty))
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        place = slot * KV_HEADS * HEAD_DIM + (head - Q_HEADS) * HEAD_DIM + d
        kind = k_cache.dtype.element_ty
        key, value = (
            turned.to(qkv.dtype.element_ty),
            tl.load(heads + (head + KV_HEADS) * HEAD_DIM + d),
        )
        tl.store(k_cache + place, cached(key, head_scale(kv_scales, head - Q_HEADS), kind))
        scale = head_scale(kv_scales, head - Q_HEADS + KV_HEADS)
        tl.store(v_cache + place, cached(value, scale, kind))
