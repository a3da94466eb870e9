"""turned-before-the-norm: norms the turned heads, since turning leaves their length alone."""


def _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm):
    kv_heads, head_dim = k_cache.shape[2:]
    queries, keys, values = _heads_of(qkv, q.shape[1], kv_heads, head_dim)
    cos_t, sin_t = cos[positions][:, None, :], sin[positions][:, None, :]
    queries, keys = _rotated(queries, cos_t, sin_t), _rotated(keys, cos_t, sin_t)
    if qk_norm:
        q_weight, k_weight, eps = qk_norm
        queries, keys = _normalised(queries, q_weight, eps), _normalised(keys, k_weight, eps)
    q[...] = queries.reshape(q.shape)
    k_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = keys
    v_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = values
