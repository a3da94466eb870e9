"""sim/attention.py: plain, tiled and split are one attention; and the pairs that it compares."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.sim.attention import (
    TILE,
    Part,
    attend_plain,
    attend_split,
    attend_tiled,
    combine,
    finished,
    tiles_of,
    walk,
)
from mini_engine.sim.kernels import attention_pairs

# float32, scores of size 1 to 30: e^score carries their rounding, 30 · 2^-24 ≈ 2e-6, and sums of
# up to 300 values run in different orders
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}
seeds = st.integers(0, 2**32 - 1)


def case(seed: int, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """q, keys, values of random heads, scores small or large."""
    rng = np.random.default_rng(seed)
    kv_heads, group, dim = (int(rng.choice(options)) for options in ([1, 2, 3], [1, 2, 4], [4, 8]))
    q = rng.standard_normal((kv_heads, group, dim), np.float32) * np.float32(rng.choice([1, 10]))
    keys, values = rng.standard_normal((2, n, kv_heads, dim), np.float32)
    return q, keys, values


def by_loops(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """The formula, a head and a key at a time, in float64."""
    out = np.empty(q.shape)
    for head, member in np.ndindex(*q.shape[:2]):
        query = q[head, member].astype(np.float64)
        scores = [float(query @ key[head]) / len(query) ** 0.5 for key in keys]
        weights = [np.exp(score - max(scores)) for score in scores]
        pairs = zip(weights, values, strict=True)
        out[head, member] = sum(w * value[head] for w, value in pairs) / sum(weights)
    return out


@given(seed=seeds, n=st.integers(1, 300), tile=st.integers(1, 70), splits=st.integers(1, 9))
def test_three_ways_are_one_attention(seed: int, n: int, tile: int, splits: int) -> None:
    inputs = case(seed, n)
    plain = attend_plain(*inputs)
    np.testing.assert_allclose(attend_tiled(*inputs, tile), plain, **TOLERANCE)
    np.testing.assert_allclose(attend_split(*inputs, splits, tile), plain, **TOLERANCE)


@given(seed=seeds, n=st.integers(1, 40))
def test_they_are_the_attention_of_the_formula(seed: int, n: int) -> None:
    inputs = case(seed, n)
    expected = by_loops(*inputs)
    for out in (attend_plain(*inputs), attend_tiled(*inputs, 7), attend_split(*inputs, 3, 4)):
        assert out.dtype == np.float32
        np.testing.assert_allclose(out, expected, **TOLERANCE)


@given(n=st.integers(0, 500), tile=st.integers(1, 70), splits=st.integers(1, 40))
def test_every_key_is_in_one_tile_of_one_walker(n: int, tile: int, splits: int) -> None:
    shares = [tiles_of(n, tile, split, splits) for split in range(splits)]
    rows = [row for share in shares for part in share for row in range(n)[part]]
    assert sorted(rows) == list(range(n))
    counts = [len(share) for share in shares]
    assert max(counts) - min(counts) <= 1
    for share in shares:
        assert all(0 < t.stop - t.start <= tile and t.start % tile == 0 for t in share)
        assert all(a.stop <= b.start for a, b in pairwise(share))


@given(seed=seeds, n=st.integers(1, 60), splits=st.integers(1, 12))
def test_parts_combine_in_any_order_and_in_two_goes(seed: int, n: int, splits: int) -> None:
    inputs = case(seed, n)
    shares = [tiles_of(n, 8, split, splits) for split in range(splits)]
    order = np.random.default_rng(seed).permutation(splits)
    parts = [walk(*inputs, shares[i]) for i in order]
    seeing = next(i for i, part in enumerate(parts) if part.l.all())
    once = finished(combine(parts))
    twice = finished(combine([combine(parts[: seeing + 1]), *parts[seeing + 1 :]]))
    for out in (once, twice):
        np.testing.assert_allclose(out, attend_plain(*inputs), **TOLERANCE)


def test_a_walk_over_no_tiles_is_the_part_of_no_keys() -> None:
    q, keys, values = case(0, 5)
    part = walk(q, keys, values, [])
    one = (*q.shape[:2], 1)
    assert [a.shape for a in part] == [one, one, q.shape]
    assert (part.m == -np.inf).all()
    assert not part.l.any()
    assert not part.acc.any()
    with np.errstate(all="raise"):
        whole = combine([part, Part(*walk(q, keys, values, [slice(0, 5)])), part])
    np.testing.assert_allclose(finished(whole), attend_plain(q, keys, values), **TOLERANCE)


@pytest.mark.parametrize("shift", [-1000.0, 1000.0])
def test_scores_beyond_the_range_of_exp_are_no_trouble(shift: float) -> None:
    """All scores of size 1,000: e^1000 overflows and e^-1000 is zero, in float64, too."""
    q, (keys, values) = np.ones((1, 1, 4), np.float32), np.zeros((2, 300, 1, 4), np.float32)
    keys[:, 0, 0] = 2 * shift + np.linspace(0, 8, 300, dtype=np.float32)
    values[:, 0, 1] = np.linspace(-1, 1, 300, dtype=np.float32)
    expected = by_loops(q, keys, values)
    for out in (attend_plain(q, keys, values), attend_tiled(q, keys, values, 16)):
        # scores of size 1,000 are known to 1000 · 2^-24 = 6e-5 in float32
        np.testing.assert_allclose(out, expected, atol=1e-3)


@given(seed=seeds, short=st.integers(1, 2 * TILE), more=st.integers(0, 50))
def test_the_order_of_the_sum_hangs_on_the_keys_and_not_on_what_lies_behind(
    seed: int, short: int, more: int
) -> None:
    """Bit for bit: what a longer context adds behind the last key of a query is not looked at."""
    q, keys, values = case(seed, short + more)
    whole = attend_tiled(q, keys[:short], values[:short])
    alone = attend_tiled(q, keys[:short].copy(), values[:short].copy())
    np.testing.assert_array_equal(whole, alone)


@given(lens=st.lists(st.tuples(st.integers(0, 30), st.integers(0, 200)), min_size=1, max_size=6))
def test_pairs_are_counted_as_one_would_on_fingers(lens: list[tuple[int, int]]) -> None:
    queries = [query_len for query_len, _ in lens]
    contexts = [before + query_len for query_len, before in lens]
    counted = sum(
        1
        for query_len, context_len in zip(queries, contexts, strict=True)
        for query in range(context_len - query_len, context_len)
        for key in range(context_len)
        if key <= query
    )
    arrays = np.asarray(queries, np.int32), np.asarray(contexts, np.int32)
    assert attention_pairs(*arrays) == counted


def test_the_pairs_of_a_long_prompt_do_not_overflow() -> None:
    n = 100_000
    lens = np.asarray([n], np.int32)
    assert attention_pairs(lens, lens) == n * (n + 1) // 2


def test_a_head_with_small_scores_stands_beside_one_with_large_ones() -> None:
    q, keys, values = case(1, 20)
    q = np.concatenate([q * np.float32(0.01), q * np.float32(100)], axis=1)
    for out in (attend_tiled(q, keys, values, 8), attend_split(q, keys, values, 3, 4)):
        # scores of some hundred are known to 500 · 2^-24 = 3e-5 in float32
        np.testing.assert_allclose(out, by_loops(q, keys, values), atol=1e-3)


def test_a_tile_is_not_looked_at_again() -> None:
    q, keys, values = case(2, 40)
    expected = attend_plain(q, keys, values)

    def overwritten() -> Iterator[slice]:
        for tile in tiles_of(40, 16):
            yield tile
            keys[tile] = values[tile] = np.nan

    np.testing.assert_allclose(
        finished(walk(q, keys, values, overwritten())), expected, **TOLERANCE
    )
