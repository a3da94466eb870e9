"""eps-is-a-constant: norms with an eps of its own, since it only keeps a root from being zero."""


def _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm):
    kv_heads, head_dim = k_cache.shape[2:]
    queries, keys, values = _heads_of(qkv, q.shape[1], kv_heads, head_dim)
    if qk_norm:
        queries = _normalised(queries, qk_norm[0], 1e-6)
        keys = _normalised(keys, qk_norm[1], 1e-6)
    cos_t, sin_t = cos[positions][:, None, :], sin[positions][:, None, :]
    q[...] = _rotated(queries, cos_t, sin_t).reshape(q.shape)
    k_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = _rotated(keys, cos_t, sin_t)
    v_cache.reshape(-1, kv_heads, head_dim)[slot_mapping] = values
