"""parts-are-averaged: each part is an attention of its own, so the whole is their mean."""


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
    weight = tl.where(best > LOWEST, 1.0 / tl.where(total > 0.0, total, 1.0), 0.0)
    whole = tl.sum(tl.where(total > 0.0, 1.0, 0.0), axis=0)
    return tl.sum(acc * weight[:, None], axis=0) / tl.where(whole > 0.0, whole, 1.0)
