"""Attention of one query over its keys, three ways with one result: plain, in tiles, split.

In:  q (kv_heads, group, D), the query heads of one token, `group` of them for each KV head;
     keys and values (n, kv_heads, D), float32, n at least 1.
Out: softmax(q kᵀ / √D) v, (kv_heads, group, D), each query head over all n keys.

    attend_plain    all n scores at once, then their weights, then the sum of values
    attend_tiled    a tile of keys at a time; what is kept between tiles is a `Part`
    attend_split    several walkers with tiles of their own, their parts combined at the end

The three differ in the last bits, since sums run in another order. The kernel `attention` takes
`attend_tiled`, whose order hangs on n alone and never on the batch. It is FlashAttention's order
(Dao et al. 2022, arXiv 2205.14135); the split is flash-decoding's (Dao et al. 2023,
https://pytorch.org/blog/flash-decoding/); both rest on the online softmax of Milakov and
Gimelshein 2018, arXiv 1805.02867. numpy has one memory, so nothing is faster here for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

F32 = np.float32
TILE = 128  # keys of a tile


class Part(NamedTuple):
    """What is left of the keys that were seen: all that the rest of the softmax needs.

    Of no keys at all: best is -inf, total and acc are 0.
    """

    best: np.ndarray  # (kv_heads, group, 1) the largest score
    total: np.ndarray  # (kv_heads, group, 1) Σ e^(score - best)
    acc: np.ndarray  # (kv_heads, group, D)  Σ e^(score - best) · value, not divided by anything


def attend_plain(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """softmax(q kᵀ / √D) v with the whole row of scores in memory.

    The largest score is subtracted before the exponential, which changes nothing but keeps it
    from overflowing: e^89 is more than a float32 holds.
    """
    scores = scores_of(q, keys)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True, dtype=F32)
    attended: np.ndarray = np.matmul(weights, values.transpose(1, 0, 2))
    return attended


def attend_tiled(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, tile: int = TILE
) -> np.ndarray:
    """The same, walking over the keys a tile at a time: never more than `tile` scores at once."""
    return finished(walk(q, keys, values, tiles_of(len(keys), tile)))


def attend_split(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, splits: int, tile: int = TILE
) -> np.ndarray:
    """The same by `splits` walkers, which need nothing of each other until the end.

    Each is a program of a GPU's grid. There may be more of them than tiles: a graph froze their
    number when it was captured.
    """
    shares = [tiles_of(len(keys), tile, split, splits) for split in range(splits)]
    return finished(combine([walk(q, keys, values, share) for share in shares]))


# -- parts ---------------------------------------------------------------------------------------


def scores_of(q: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """q · k / √D for every query head and every key of its KV head. (kv_heads, group, n)

    Without the root, scores of long heads would spread so far that one key takes all the weight
    (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1).
    """
    scores: np.ndarray = np.matmul(q, keys.transpose(1, 2, 0)) * F32(q.shape[-1] ** -0.5)
    return scores


def add_tile(part: Part, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Part:
    """The part of what `part` had seen and this tile together: one step of the online softmax.

    keys, values (tile, kv_heads, D), at least one key. Returns a new Part; the given one, whose
    best may be -inf, is left as it is. Nothing is divided.
    """
    scores = scores_of(q, keys)
    best = np.maximum(part.best, scores.max(axis=-1, keepdims=True))
    keep, weights = np.exp(part.best - best), np.exp(scores - best)
    total = part.total * keep + weights.sum(axis=-1, keepdims=True, dtype=F32)
    return Part(best, total, part.acc * keep + np.matmul(weights, values.transpose(1, 0, 2)))


def walk(q: np.ndarray, keys: np.ndarray, values: np.ndarray, tiles: Iterable[slice]) -> Part:
    """The part of the keys in these tiles, seen one tile after another.

    Each tile is a slice of 0 .. n with one key at least. Its keys and values are read when its turn
    comes and never again: a small memory may hold the next tile in their place. With no tiles, the
    part of no keys, in shapes that fit q: best and total (kv_heads, group, 1), acc like q, float32.
    """
    no_scores = np.zeros((*q.shape[:-1], 1), F32)
    part = Part(no_scores - F32(np.inf), no_scores, np.zeros_like(q))
    for tile in tiles:
        part = add_tile(part, q, keys[tile], values[tile])
    return part


def tiles_of(n: int, tile: int, split: int = 0, splits: int = 1) -> list[slice]:
    """The tiles that one of `splits` walkers takes of n keys, in rising order.

    Tiles begin at 0, tile, 2 · tile, …, and the last one ends at n, full or not. They are dealt
    out in turns: walker `split` takes tiles split, split + splits, split + 2 · splits, …. So a
    fixed number of walkers covers any n, in shares that differ by one tile at most; where tiles
    are fewer than walkers, some get none. n ≥ 0, tile ≥ 1, 0 ≤ split < splits.
    """
    starts = range(split * tile, n, splits * tile)
    return [slice(start, min(start + tile, n)) for start in starts]


def combine(parts: Sequence[Part]) -> Part:
    """The part of all keys that any of `parts` has seen, each key by one of them.

    They come in any order, and some, the first among them too, may have seen no key; at least one
    has. The same correction as between tiles: each was summed under a best of its own.
    """
    best = np.maximum.reduce([part.best for part in parts])
    keeps = [np.exp(part.best - best) for part in parts]
    total = sum(part.total * keep for part, keep in zip(parts, keeps, strict=True))
    acc = sum(part.acc * keep for part, keep in zip(parts, keeps, strict=True))
    return Part(best, np.asarray(total), np.asarray(acc))


def finished(part: Part) -> np.ndarray:
    """The attention of the keys seen: the sum of weighted values over the sum of weights."""
    attended: np.ndarray = part.acc / part.total
    return attended
