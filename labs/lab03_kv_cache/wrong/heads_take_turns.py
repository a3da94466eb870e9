"""heads-take-turns: query head h reads KV head h % kv_heads."""


@kernel(bytes=_attention_bytes, flops=_attention_flops, dynamic=True)
def attention(out, q, k_cache, v_cache, block_table, query_lens, context_lens):
    kv_heads, head_dim = k_cache.shape[2:]
    row = 0
    for blocks, query_len, context_len in zip(block_table, query_lens, context_lens, strict=True):
        keys = _context_rows(k_cache, blocks, context_len)
        values = _context_rows(v_cache, blocks, context_len)
        for seen in range(context_len - query_len + 1, context_len + 1):
            heads = q[row].reshape(-1, kv_heads, head_dim).transpose(1, 0, 2)
            attended = attend_tiled(heads, keys[:seen], values[:seen])
            out[row] = attended.transpose(1, 0, 2).reshape(-1)
            row += 1
