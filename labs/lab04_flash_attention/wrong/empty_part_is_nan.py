"""empty-part-is-nan: merges part by part and does not ask whether two that merge have seen a key."""

from functools import reduce


def combine(parts):
    def merged(a, b):
        m = np.maximum(a.m, b.m)
        keep_a, keep_b = np.exp(a.m - m), np.exp(b.m - m)
        l = a.l * keep_a + b.l * keep_b
        return Part(m, l, a.acc * keep_a + b.acc * keep_b)

    return reduce(merged, parts)
