"""one-max-for-all-heads: any large number will do to subtract, so one for all heads of the token."""


def attend_plain(q, keys, values):
    scores = scores_of(q, keys)
    weights = np.exp(scores - scores.max())
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.matmul(weights, values.transpose(1, 0, 2))


def add_tile(part, q, keys, values):
    scores = scores_of(q, keys)
    m = np.maximum(part.m, scores.max())
    keep, weights = np.exp(part.m - m), np.exp(scores - m)
    l = part.l * keep + weights.sum(axis=-1, keepdims=True)
    return Part(m, l, part.acc * keep + np.matmul(weights, values.transpose(1, 0, 2)))
