"""cache-follows-weights: stores the cache in as many bits as the weights."""


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}")
    taken = tensor_bytes(config, quant)
    if not config.tie_word_embeddings:
        del taken[EMBED]
    numbers = 2 * config.num_layers * config.kv_size * sum(contexts)
    return DecodeBytes(round(sum(taken.values())), numbers * QUANTS[quant].bits // 8)
