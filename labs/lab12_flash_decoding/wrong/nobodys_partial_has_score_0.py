"""nobodys-partial-has-score-0: loads zeros in the place of the partials from SPLITS on."""


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    split = tl.arange(0, PADDED)
    inside = split < SPLITS
    d = tl.arange(0, HEAD_DIM)
    partial = head * SPLITS + split
    m = tl.load(stats + partial * 2, mask=inside, other=0.0, cache_modifier=".cg")
    l = tl.load(stats + partial * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
    at = partial[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(sums + at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
    weight = tl.exp(m - tl.max(m, axis=0))
    whole = tl.sum(l * weight, axis=0)
    return tl.sum(acc * weight[:, None], axis=0) / tl.where(whole > 0.0, whole, 1.0)
