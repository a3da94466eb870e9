"""attention-joins-what-follows: believes that a new part begins at each attention, and that is all."""


def parts_of(graph):
    parts, part = {}, 0
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        part += is_attention(node) and bool(parts)
        parts[node] = part
    return parts
