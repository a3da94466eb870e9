"""nodes-are-ops: counts whatever stands in the graph, inputs and the return included."""


def ops_of(graph):
    return [getattr(node.target, "__name__", node.target) for node in graph.graph.nodes]
