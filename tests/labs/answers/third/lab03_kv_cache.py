"""A third right way: counted by hand, a slot at a time, rows from the last to the first."""


def token_arrays(entries, block_size):
    rows = []
    for entry in entries:
        for offset in range(entry.query_len):
            position = entry.start + offset
            block = entry.block_table[position // block_size]
            rows.append(
                (entry.token_ids[offset], position, block * block_size + position % block_size)
            )
    ids, positions, slots = np.array(rows, np.int32).T
    return {"input_ids": ids, "positions": positions, "slot_mapping": slots}


def request_arrays(entries, width):
    query_lens = np.zeros(len(entries), np.int32)
    context_lens, last_rows = query_lens.copy(), query_lens.copy()
    block_table, rows = np.zeros((len(entries), width), np.int32), 0
    for i, entry in enumerate(entries):
        rows += entry.query_len
        query_lens[i], context_lens[i], last_rows[i] = entry.query_len, entry.context_len, rows - 1
        for j, block in enumerate(entry.block_table):
            block_table[i, j] = block
    return {
        "block_table": block_table,
        "last_rows": last_rows,
        "context_lens": context_lens,
        "query_lens": query_lens,
    }


def _rope_and_store(q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, qk_norm):
    blocks, offsets = np.divmod(slot_mapping, k_cache.shape[1])
    heads = qkv.reshape(len(qkv), -1, k_cache.shape[3])
    last_q, kv_heads = q.shape[1] // k_cache.shape[3], k_cache.shape[2]
    turn, values = heads[:, :-kv_heads].copy(), heads[:, -kv_heads:]
    if qk_norm is not None:
        for part, weight in ((slice(0, last_q), qk_norm[0]), (slice(last_q, None), qk_norm[1])):
            mean = np.mean(turn[:, part] ** 2, axis=-1, keepdims=True)
            turn[:, part] = turn[:, part] / np.sqrt(mean + qk_norm[2]) * weight
    half = k_cache.shape[3] // 2
    c, s = np.take(cos, positions, axis=0)[:, None], np.take(sin, positions, axis=0)[:, None]
    left, right = turn[..., :half].copy(), turn[..., half:].copy()
    turn[..., :half], turn[..., half:] = left * c - right * s, right * c + left * s
    q[:] = turn[:, :last_q].reshape(len(q), -1)
    k_cache[blocks, offsets] = turn[:, last_q:]
    v_cache[blocks, offsets] = values


def attention_pairs(query_lens, context_lens):
    def triangle(n):
        return n * (n + 1) // 2

    contexts, queries = np.asarray([context_lens, query_lens], dtype=np.int64)
    return int(np.sum(triangle(contexts) - triangle(contexts - queries)))


def _context_rows(cache, blocks, context_len):
    out = np.empty((context_len, *cache.shape[2:]), cache.dtype)
    size = cache.shape[1]
    for start in range(0, context_len, size):
        rows = min(size, context_len - start)
        out[start : start + rows] = cache[blocks[start // size], :rows]
    return out


@kernel(bytes=_attention_bytes, flops=_attention_flops, dynamic=True)
def attention(out, q, k_cache, v_cache, block_table, query_lens, context_lens):
    kv_heads, head_dim = k_cache.shape[2:]
    owners = np.repeat(np.arange(len(query_lens)), query_lens)  # the request of each row
    for row in reversed(range(len(owners))):
        owner = owners[row]
        behind = int((owners[row + 1 :] == owner).sum())  # tokens of the request that come later
        seen = int(context_lens[owner]) - behind
        keys, values = (_context_rows(c, block_table[owner], seen) for c in (k_cache, v_cache))
        group = q[row].reshape(kv_heads, -1, head_dim)
        out[row] = np.ravel(attend_tiled(group, keys, values))
