"""values-not-rescaled: corrects the sum of weights; values, it believes, do not hang on the best."""


def add_tile(part, q, keys, values):
    scores = scores_of(q, keys)
    best = np.maximum(part.best, scores.max(axis=-1, keepdims=True))
    keep, weights = np.exp(part.best - best), np.exp(scores - best)
    total = part.total * keep + weights.sum(axis=-1, keepdims=True)
    return Part(best, total, part.acc + np.matmul(weights, values.transpose(1, 0, 2)))
