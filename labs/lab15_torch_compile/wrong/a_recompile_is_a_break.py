"""a-recompile-is-a-break: takes every graph after the first for the work of a break."""


def graph_breaks(calls):
    graphs = [graph for call in calls for graph in call.graphs]
    return [break_of(graph) or Break("?", "another graph") for graph in graphs[:-1]]
