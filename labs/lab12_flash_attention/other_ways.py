"""Attention of one query over its keys in two other ways, with the result of `attend_tiled`.

    attend_plain    all n scores at once, then their weights, then the sum of values
    attend_split    several walkers, each over tiles of its own; their parts are combined at the end

Inputs and output are those of `mini_engine/sim/attention.py`, whose pieces these are made of. The
three ways differ in the last bits, because each sums in another order. The split is
flash-decoding's (Dao et al. 2023, https://pytorch.org/blog/flash-decoding/).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mini_engine.sim.attention import F32, TILE, Part, finished, scores_of, tiles_of, walk


def attend_plain(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """softmax(q kᵀ / √D) v with the whole row of scores in memory.

    Subtracting the largest score changes nothing, but keeps the exponential from overflowing: e^89
    is more than a float32 holds.
    """
    scores = scores_of(q, keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True, dtype=F32)
    attended: np.ndarray = np.matmul(weights, values.transpose(1, 0, 2))
    return attended


def attend_split(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, splits: int, tile: int = TILE
) -> np.ndarray:
    """The same by `splits` walkers that need nothing of each other until the end.

    On a GPU each is one program of the grid. There may be more of them than tiles, because a graph
    has frozen their number at capture.
    """
    shares = [tiles_of(len(keys), tile, split, splits) for split in range(splits)]
    return finished(combine([walk(q, keys, values, share) for share in shares]))


def combine(parts: Sequence[Part]) -> Part:
    """The part of all keys that any of `parts` has seen, each key by one of them.

    They come in any order. Some of them, perhaps the first, may have seen no key, but at least one
    has. The correction is the one between tiles, since each part was summed under an m of its own.
    """
    m = np.maximum.reduce([part.m for part in parts])
    keeps = [np.exp(part.m - m) for part in parts]
    l = sum(part.l * keep for part, keep in zip(parts, keeps, strict=True))
    acc = sum(part.acc * keep for part, keep in zip(parts, keeps, strict=True))
    return Part(m, np.asarray(l), np.asarray(acc))
