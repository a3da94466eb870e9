"""weights-per-request: every request of the batch reads the weights for itself."""


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}")
    taken = tensor_bytes(config, quant)
    if not config.tie_word_embeddings:
        del taken[EMBED]
    a_token = 2 * config.num_layers * config.kv_size * KV_DTYPE_BYTES[kv_dtype]
    return DecodeBytes(len(contexts) * round(sum(taken.values())), sum(contexts) * a_token)
