"""chunk-begins-its-text: the first of several tokens sees one key, the next one two, and so on."""


@kernel(bytes=_attention_bytes, flops=_attention_flops, dynamic=True)
def attention(out, q, k_cache, v_cache, block_table, query_lens, context_lens):
    kv_heads, head_dim = k_cache.shape[2:]
    row = 0
    for blocks, query_len, context_len in zip(block_table, query_lens, context_lens, strict=True):
        keys = _context_rows(k_cache, blocks, context_len)
        values = _context_rows(v_cache, blocks, context_len)
        for token in range(query_len):
            seen = context_len if query_len == 1 else token + 1
            heads = q[row].reshape(kv_heads, -1, head_dim)
            out[row] = attend_tiled(heads, keys[:seen], values[:seen]).reshape(-1)
            row += 1
