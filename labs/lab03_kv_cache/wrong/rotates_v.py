"""rotates-v: turns all three of q, k and v, since all three belong to a position."""


def _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm):
    kv_heads, head_dim = k_cache.shape[2:]
    queries, keys, values = _heads_of(qkv, q.shape[1], kv_heads, head_dim)
    if qk_norm:
        q_weight, k_weight, eps = qk_norm
        queries, keys = _normalised(queries, q_weight, eps), _normalised(keys, k_weight, eps)
    cos_t, sin_t = cos[positions][:, None, :], sin[positions][:, None, :]
    q[...] = _rotated(queries, cos_t, sin_t).reshape(q.shape)
    k_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = _rotated(keys, cos_t, sin_t)
    v_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = _rotated(values, cos_t, sin_t)
