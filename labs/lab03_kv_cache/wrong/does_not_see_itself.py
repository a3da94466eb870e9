"""does-not-see-itself: a token attends to those before it; only the first has nobody else."""


@kernel(bytes=_attention_bytes, flops=_attention_flops, dynamic=True)
def attention(out, q, k_cache, v_cache, block_table, query_lens, context_lens):
    kv_heads, head_dim = k_cache.shape[2:]
    row = 0
    for blocks, query_len, context_len in zip(block_table, query_lens, context_lens, strict=True):
        keys = _context_rows(k_cache, blocks, context_len)
        values = _context_rows(v_cache, blocks, context_len)
        for before in range(context_len - query_len, context_len):
            heads, seen = q[row].reshape(kv_heads, -1, head_dim), max(before, 1)
            out[row] = attend_tiled(heads, keys[:seen], values[:seen]).reshape(-1)
            row += 1
