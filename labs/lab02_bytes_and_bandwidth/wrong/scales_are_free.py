"""scales-are-free: 4 bits a weight are half a byte a weight, and nothing else is stored."""


def tensor_bytes(config, quant="bf16"):
    if quant not in QUANTS:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join(QUANTS)}")
    bits = QUANTS[quant].bits
    plain = bits / 8 if bits >= 16 else config.dtype_bytes
    taken = {}
    for name, shape in tensor_shapes(config).items():
        in_a_layer = name.startswith("model.layers.") and len(shape) == 2
        taken[name] = math.prod(shape) * (bits / 8 if in_a_layer else plain)
    return taken
