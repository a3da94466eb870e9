"""empty-part-is-nan: merges part by part and does not ask whether two that merge have seen a key."""

from functools import reduce


def combine(parts):
    def merged(a, b):
        best = np.maximum(a.best, b.best)
        keep_a, keep_b = np.exp(a.best - best), np.exp(b.best - best)
        total = a.total * keep_a + b.total * keep_b
        return Part(best, total, a.acc * keep_a + b.acc * keep_b)

    return reduce(merged, parts)
