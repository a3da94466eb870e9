"""tied-head-counted-twice: always leaves the embedding out, also where it is the head."""


def read_bytes(config, quant="bf16"):
    plain = QUANTS[quant].bits // 8 if QUANTS[quant].bits >= 16 else config.dtype_bytes
    return weight_bytes(config, quant) - config.vocab_size * config.hidden_size * plain
