"""embedding-is-read-whole: a step reads all weights, so the embedding and the head are both read."""


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}")
    a_token = 2 * config.num_layers * config.kv_size * KV_DTYPE_BYTES[kv_dtype]
    return DecodeBytes(weight_bytes(config, quant), sum(contexts) * a_token)
