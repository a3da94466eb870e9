"""loop-over-requests: counts request by request, since that is how one thinks of it."""


def attention_pairs(query_lens, context_lens):
    pairs = 0
    for query_len, context_len in zip(query_lens.tolist(), context_lens.tolist(), strict=True):
        pairs += query_len * context_len - query_len * (query_len - 1) // 2
    return pairs
