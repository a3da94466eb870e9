"""divides-each-tile: makes each tile a softmax of its own before it is added to the others."""


def add_tile(part, q, keys, values):
    scores = scores_of(q, keys)
    m = np.maximum(part.m, scores.max(axis=-1, keepdims=True))
    keep, weights = np.exp(part.m - m), np.exp(scores - m)
    sums = weights.sum(axis=-1, keepdims=True)
    acc = part.acc * keep + np.matmul(weights, values.transpose(1, 0, 2)) / sums
    return Part(m, part.l * keep + sums, acc)
