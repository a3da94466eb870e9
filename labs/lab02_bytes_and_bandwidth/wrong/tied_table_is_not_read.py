"""tied-table-is-not-read: always leaves the embedding out, also where it is the head."""


def decode_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    if kv_dtype not in KV_DTYPE_BYTES:
        raise ValueError(f"kv_dtype {kv_dtype!r}")
    taken = tensor_bytes(config, quant)
    weights = sum(count for name, count in taken.items() if name != EMBED)
    a_token = 2 * config.num_layers * config.kv_size * KV_DTYPE_BYTES[kv_dtype]
    return DecodeBytes(round(weights), sum(contexts) * a_token)
