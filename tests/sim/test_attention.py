"""sim/attention.py, beside the tests of lab 12: the formula, the order of the sums, the pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.sim.attention import TILE, attend_tiled
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


@given(seed=seeds, n=st.integers(1, 40))
def test_attention_in_tiles_is_the_attention_of_the_formula(seed: int, n: int) -> None:
    inputs = case(seed, n)
    expected = by_loops(*inputs)
    out = attend_tiled(*inputs, 7)
    assert out.dtype == np.float32
    np.testing.assert_allclose(out, expected, **TOLERANCE)


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
