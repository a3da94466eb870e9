"""an-empty-split-is-nan: divides each part by its own total first; some have none."""


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    split = tl.arange(0, PADDED)
    inside = split < SPLITS
    d = tl.arange(0, HEAD_DIM)
    part = head * SPLITS + split
    best = tl.load(stats + part * 2, mask=inside, other=LOWEST, cache_modifier=".cg")
    total = tl.load(stats + part * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
    at = part[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(sums + at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
    weight = tl.exp(best - tl.max(best, axis=0))
    whole = tl.sum(total * weight, axis=0)
    share = total * weight / tl.where(whole > 0.0, whole, 1.0)
    return tl.sum(acc / total[:, None] * share[:, None], axis=0)
