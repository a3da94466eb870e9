"""versions-do-not-matter: believes that a graph compiles to the same thing everywhere and always."""


def piece_key(piece, compiler, versions):
    numbers = {node: f"%{i}" for i, node in enumerate(piece.graph.nodes)}
    lines = [compiler]
    for node in piece.graph.nodes:
        line = f"{node.op} {_called(node)} {map_arg((node.args, node.kwargs), numbers.__getitem__)}"
        if node.op in ("placeholder", "output"):
            line = f"{node.op} {_kind(node.meta.get('example_value'))}"
        if node.op == "get_attr":
            constant = getattr(piece, node.target)
            line = f"get_attr {_kind(constant)} {constant.tolist()}"
        if node.op == "output":
            line += str(map_arg(node.args, numbers.__getitem__))
        lines.append(line)
    return digest(*_symbols_by_order("\n".join(map(str, lines))))
