"""a-graph-of-nothing: an op that does not split is captured, whether it launches something or not."""


def without_graphs_of_nothing(numbers, splits, bare):
    return list(numbers)
