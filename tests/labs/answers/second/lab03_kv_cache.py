"""Another right way: whole arrays at once for indices, a mask over a request's own rows."""


def token_arrays(entries, block_size):
    out = {"input_ids": [], "positions": [], "slot_mapping": []}
    for entry in entries:
        positions = entry.start + np.arange(entry.query_len)
        block, offset = np.divmod(positions, block_size)
        out["input_ids"].append(np.asarray(entry.token_ids))
        out["positions"].append(positions)
        out["slot_mapping"].append(np.asarray(entry.block_table)[block] * block_size + offset)
    return {name: np.concatenate(parts) for name, parts in out.items()}


def request_arrays(entries, width):
    starts, lens = np.array([(entry.start, entry.query_len) for entry in entries]).T
    rows = [[*e.block_table, *[0] * (width - len(e.block_table))] for e in entries]
    ends, total = [], 0
    for query_len in lens:
        total += query_len
        ends.append(total - 1)
    return {
        "query_lens": lens,
        "context_lens": starts + lens,
        "last_rows": ends,
        "block_table": rows,
    }


def _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm):
    _, block_size, kv_heads, head_dim = k_cache.shape
    for row, (position, slot) in enumerate(zip(positions, slot_mapping, strict=True)):
        heads = qkv[row].reshape(-1, head_dim)
        split = q.shape[1] // head_dim
        queries, keys, values = heads[:split], heads[split : split + kv_heads], heads[-kv_heads:]
        if qk_norm:
            queries = _normalised(queries, qk_norm[0], qk_norm[2])
            keys = _normalised(keys, qk_norm[1], qk_norm[2])
        place = slot // block_size, slot % block_size
        q[row] = _rotated(queries, cos[position], sin[position]).ravel()
        k_cache[place] = _rotated(keys, cos[position], sin[position])
        v_cache[place] = values


def attention_pairs(query_lens, context_lens):
    before = context_lens.astype(np.int64) - query_lens
    among_themselves = np.multiply(query_lens, query_lens + 1, dtype=np.int64) // 2
    return int(np.dot(before, query_lens) + among_themselves.sum())


def _context_rows(cache, blocks, context_len):
    positions = np.arange(context_len)
    return cache[blocks[positions // cache.shape[1]], positions % cache.shape[1]]


@kernel(bytes=_attention_bytes, flops=_attention_flops, dynamic=True)
def attention(out, q, k_cache, v_cache, block_table, query_lens, context_lens):
    kv_heads, head_dim = k_cache.shape[2:]
    ends = np.cumsum(query_lens)
    for i in np.flatnonzero(query_lens):
        n, context = query_lens[i], context_lens[i]
        keys, values = (_context_rows(c, block_table[i], context) for c in (k_cache, v_cache))
        own = slice(ends[i] - n, ends[i])
        heads = q[own].reshape(n, kv_heads, -1, head_dim)
        scores = np.einsum("qhgd,khd->qhgk", heads, keys) / F32(head_dim**0.5)
        hidden = np.arange(context) > np.arange(context - n, context)[:, None]
        scores[np.broadcast_to(hidden[:, None, None], scores.shape)] = -np.inf
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weights /= weights.sum(axis=-1, keepdims=True)
        out[own] = np.einsum("qhgk,khd->qhgd", weights, values).reshape(n, -1)
