"""Attention of one query over its keys, one tile after another: FlashAttention's order.

In:  q (kv_heads, group, D), the query heads of one token, `group` of them for each KV head;
     keys and values (n, kv_heads, D), float32, n at least 1.

A `Part` is all that is kept between tiles (Dao et al. 2022, arXiv 2205.14135), by the online
softmax of Milakov and Gimelshein 2018, arXiv 1805.02867. In which order a query's sums run depends
on n alone and never on the batch."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

F32 = np.float32
TILE = 128  # keys in a tile


class Part(NamedTuple):
    """All that the rest of the softmax needs to know of the keys seen so far. Of no keys at all: m
    is -inf, l and acc are 0."""

    m: np.ndarray  # (kv_heads, group, 1) the largest score
    l: np.ndarray  # (kv_heads, group, 1) Σ e^(score - m)
    acc: np.ndarray  # (kv_heads, group, D)  Σ e^(score - m) · value, not yet divided by l


def attend_tiled(
    q: np.ndarray, keys: np.ndarray, values: np.ndarray, tile: int = TILE
) -> np.ndarray:
    """softmax(q kᵀ / √D) v, a tile of keys at a time: never more than `tile` scores at once."""
    return finished(walk(q, keys, values, tiles_of(len(keys), tile)))


def scores_of(q: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """q · k / √D for every query head and every key of its KV head. (kv_heads, group, n) Without
    the root, the scores of long heads would spread so far that one key takes all the weight
    (Vaswani et al. 2017, arXiv 1706.03762, section 3.2.1)."""
    scores: np.ndarray = np.matmul(q, keys.transpose(1, 2, 0)) * F32(q.shape[-1] ** -0.5)
    return scores


def add_tile(part: Part, q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Part:
    """One step of the online softmax: the part of everything in `part` and this tile together.
    keys, values (tile, kv_heads, D), at least one key. Nothing is divided. Returns a new Part and
    leaves the given one, whose m may be -inf, as it is."""
    scores = scores_of(q, keys)
    m = np.maximum(part.m, scores.max(axis=-1, keepdims=True))
    keep, weights = np.exp(part.m - m), np.exp(scores - m)
    l = part.l * keep + weights.sum(axis=-1, keepdims=True, dtype=F32)
    return Part(m, l, part.acc * keep + np.matmul(weights, values.transpose(1, 0, 2)))


def walk(q: np.ndarray, keys: np.ndarray, values: np.ndarray, tiles: Iterable[slice]) -> Part:
    """The part of the keys in these tiles, seen one tile after another. Each tile is a slice of 0
    .. n with at least one key. Read its keys and values in its turn and never again: a small memory
    may hold the next tile in their place. Without tiles, return the part of no keys in shapes that
    fit q: m and l (kv_heads, group, 1), acc like q, float32."""
    no_scores = np.zeros((*q.shape[:-1], 1), F32)
    part = Part(no_scores - F32(np.inf), no_scores, np.zeros_like(q))
    for tile in tiles:
        part = add_tile(part, q, keys[tile], values[tile])
    return part


def tiles_of(n: int, tile: int, split: int = 0, splits: int = 1) -> list[slice]:
    """The tiles of n keys that one of `splits` walkers takes, in rising order. Tiles begin at 0,
    tile, 2 · tile, …, and the last one ends at n, full or not. They are dealt out in turns: walker
    `split` takes tiles split, split + splits, split + 2 · splits, …. So a fixed number of walkers
    covers any n, in shares that differ by at most one tile; where there are fewer tiles than
    walkers, some get none. n ≥ 0, tile ≥ 1, 0 ≤ split < splits."""
    starts = range(split * tile, n, splits * tile)
    return [slice(start, min(start + tile, n)) for start in starts]


def finished(part: Part) -> np.ndarray:
    """The attention of the keys seen: the sum of weighted values over the sum of weights."""
    attended: np.ndarray = part.acc / part.l
    return attended
