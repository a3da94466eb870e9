"""query-heads-are-cached: caches a key and a value for every query head."""


def kv_bytes_per_token(config, kv_dtype="bf16"):
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}")
    return 2 * config.num_layers * config.q_size * KV_DTYPE_BYTES[kv_dtype]
