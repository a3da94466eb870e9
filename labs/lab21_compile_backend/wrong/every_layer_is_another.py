"""every-layer-is-another: believes that the code which FX prints, names and all, is the piece."""


def piece_key(piece, compiler, versions):
    kinds = [_kind(n.meta.get("example_value")) for n in piece.graph.nodes]
    constants = [getattr(piece, n.target).tolist() for n in piece.graph.nodes if n.op == "get_attr"]
    return digest(compiler, versions, piece.code, kinds, constants)
