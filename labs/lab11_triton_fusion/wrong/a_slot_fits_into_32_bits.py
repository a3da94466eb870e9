"""a-slot-fits-into-32-bits: computes the place in the cache in the dtype of the slot."""


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
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    pair = tl.arange(0, half)
    is_q = head < Q_HEADS
    if QK_NORM:
        weight = q_norm if is_q else k_norm
        weight_left = tl.load(weight + pair).to(tl.float32)
        weight_right = tl.load(weight + half + pair).to(tl.float32)
    pdl_wait(PDL)
    position = tl.load(positions + token, cache_modifier=".cg").to(tl.int64)
    c = tl.load(cos + position * half + pair)
    s = tl.load(sin + position * half + pair)
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + pair
    left = tl.load(source, cache_modifier=".cg").to(tl.float32)
    right = tl.load(source + half, cache_modifier=".cg").to(tl.float32)
    if QK_NORM:
        left, right = head_norm(left, right, weight_left, weight_right, eps, HEAD_DIM)
    rotated_left = left * c - right * s
    rotated_right = right * c + left * s
    if is_q:
        target = q + (token * Q_HEADS + head) * HEAD_DIM + pair
        tl.store(target, rotated_left.to(q.dtype.element_ty))
        tl.store(target + half, rotated_right.to(q.dtype.element_ty))
    else:
        slot = tl.load(slot_mapping + token, cache_modifier=".cg")
        kv_head = head - Q_HEADS
        row = (slot * KV_HEADS + kv_head) * HEAD_DIM + pair
        wide = qkv.dtype.element_ty
        kind = k_cache.dtype.element_ty
        scale = head_scale(kv_scales, kv_head)
        tl.store(k_cache + row, cached(rotated_left.to(wide), scale, kind))
        tl.store(k_cache + row + half, cached(rotated_right.to(wide), scale, kind))
        scale = head_scale(kv_scales, KV_HEADS + kv_head)
        values = source + KV_HEADS * HEAD_DIM
        v_left = tl.load(values, cache_modifier=".cg")
        v_right = tl.load(values + half, cache_modifier=".cg")
        tl.store(v_cache + row, cached(v_left, scale, kind))
        tl.store(v_cache + row + half, cached(v_right, scale, kind))
