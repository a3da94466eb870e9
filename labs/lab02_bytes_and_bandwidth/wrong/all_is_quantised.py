"""all-is-quantised: stores every tensor in few bits, the embedding and the norms too."""


def tensor_bytes(config, quant="bf16"):
    if quant not in QUANTS:
        raise ValueError(f"quant {quant!r}: expected one of {', '.join(QUANTS)}")
    taken = {}
    for name, shape in tensor_shapes(config).items():
        rows, columns = (1, *shape)[-2:]
        taken[name] = QUANTS[quant].matrix_bytes(rows, columns)
    return taken
