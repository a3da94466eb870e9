"""nobody-else-reads-it: believes that what fits in shape may be written over."""


def may_fuse(match, graph, pattern):
    if not all(isinstance(node, Node) for node in match.placeholder_nodes):
        return False
    one, other, gain = [node.meta.get("example_value") for node in match.placeholder_nodes]
    if not all(isinstance(value, Tensor) for value in (one, other, gain)):
        return False
    same = one.shape == other.shape and one.dtype == other.dtype == gain.dtype
    return same and other.dim() == 2 and gain.shape == other.shape[1:]
