"""attention-in-a-piece: believes that attention is an op like any other, and cuts nowhere."""


def parts_of(graph):
    return {n: 0 for n in graph.graph.nodes if n.op not in ("placeholder", "output")}
