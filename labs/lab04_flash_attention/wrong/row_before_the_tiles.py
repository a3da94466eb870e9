"""row-before-the-tiles: takes the whole row of scores first, and walks over that tile by tile."""


def walk(q, keys, values, tiles):
    scores = scores_of(q, keys)
    one = (*q.shape[:-1], 1)
    m, l, acc = np.full(one, -np.inf, F32), np.zeros(one, F32), np.zeros(q.shape, F32)
    for tile in tiles:
        higher = np.maximum(m, scores[..., tile].max(axis=-1, keepdims=True))
        keep, weights = np.exp(m - higher), np.exp(scores[..., tile] - higher)
        l = l * keep + weights.sum(axis=-1, keepdims=True)
        acc = acc * keep + np.matmul(weights, values[tile].transpose(1, 0, 2))
        m = higher
    return Part(m, l, acc)
