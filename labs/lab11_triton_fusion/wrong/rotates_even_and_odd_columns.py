"""rotates-even-and-odd-columns: a pair is two neighbours, as in the paper on RoPE."""


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
    pdl_wait(PDL)
    position = tl.load(positions + token).to(tl.int64)
    c = tl.load(cos + position * half + pair)
    s = tl.load(sin + position * half + pair)
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + 2 * pair
    left = tl.load(source).to(tl.float32)
    right = tl.load(source + 1).to(tl.float32)
    if QK_NORM:
        weight = q_norm if is_q else k_norm
        weight_left = tl.load(weight + 2 * pair).to(tl.float32)
        weight_right = tl.load(weight + 2 * pair + 1).to(tl.float32)
        left, right = head_norm(left, right, weight_left, weight_right, eps, HEAD_DIM)
    rotated_left = left * c - right * s
    rotated_right = right * c + left * s
    if is_q:
        target = q + (token * Q_HEADS + head) * HEAD_DIM + 2 * pair
        tl.store(target, rotated_left.to(q.dtype.element_ty))
        tl.store(target + 1, rotated_right.to(q.dtype.element_ty))
    else:
        slot = tl.load(slot_mapping + token).to(tl.int64)
        row = (slot * KV_HEADS + head - Q_HEADS) * HEAD_DIM + 2 * pair
        tl.store(k_cache + row, rotated_left.to(k_cache.dtype.element_ty))
        tl.store(k_cache + row + 1, rotated_right.to(k_cache.dtype.element_ty))
        values = source + KV_HEADS * HEAD_DIM
        tl.store(v_cache + row, tl.load(values))
        tl.store(v_cache + row + 1, tl.load(values + 1))
