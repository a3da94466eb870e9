"""weights-per-request: every request of the batch reads the weights for itself."""


def step_read_bytes(config, contexts, quant="bf16", kv_dtype="bf16"):
    per_token = kv_bytes_per_token(config, kv_dtype)
    return sum(read_bytes(config, quant) + tokens * per_token for tokens in contexts)
