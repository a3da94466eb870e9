"""all-is-quantised: parameters times bits, the embedding and the norms too."""


def weight_bytes(config, quant="bf16"):
    if quant not in QUANTS:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join(QUANTS)}")
    return config.num_parameters * QUANTS[quant].bits // 8
