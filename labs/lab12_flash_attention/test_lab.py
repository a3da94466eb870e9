"""Lab 12: attention in tiles. What you write is held to the formula in 64 bits, all at once."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator

import numpy as np
import pytest

from labs.lab12_flash_attention.other_ways import attend_plain, attend_split, combine
from labs.support.counting import peak_bytes
from labs.support.inputs import agree, frozen
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.engine.generation import SHIPPED, limits_for
from mini_engine.sim.attention import Part, add_tile, attend_tiled, scores_of, tiles_of, walk
from mini_engine.sim.device import Device
from mini_engine.sim.generate import open_checkpoint
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import load_spec

F32 = np.float32
# Scores up to 100 in float32 are known to 100 · 2^-24 = 6e-6; a weight e^score carries that as its
# relative error, and sums of some hundred terms run in whatever order you choose.
CLOSE = {"rtol": 2e-4, "atol": 2e-4}

Inputs = tuple[np.ndarray, np.ndarray, np.ndarray]


def random_inputs(rng: np.random.Generator, n: int) -> Inputs:
    """q (kv_heads, group, D), keys, values (n, kv_heads, D), read-only. Scores up to 60 or so."""
    kv_heads, group, dim = rng.choice([1, 2, 3]), rng.choice([1, 2, 4]), rng.choice([4, 8, 16])
    q = rng.standard_normal((kv_heads, group, dim), F32) * F32(rng.choice([1, 3, 10]))
    keys, values = rng.standard_normal((2, n, kv_heads, dim), F32)
    return frozen(q), frozen(keys), frozen(values)


def formula(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Part:
    """m, l and acc of all these keys, head by head, in float64."""
    kv_heads, group, dim = q.shape
    m, l = np.full((2, kv_heads, group, 1), -np.inf)
    acc = np.zeros((kv_heads, group, dim))
    for head in range(kv_heads if len(keys) else 0):
        for member in range(group):
            scores = keys[:, head].astype(float) @ q[head, member].astype(float) / dim**0.5
            weights = np.exp(scores - scores.max())
            m[head, member], l[head, member] = scores.max(), weights.sum()
            acc[head, member] = weights @ values[:, head].astype(float)
    return Part(m, np.maximum(l, 0), acc)


def attention(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    part = formula(q, keys, values)
    return part.acc / part.l


def nothing_seen(q: np.ndarray) -> Part:
    zeros = np.zeros((*q.shape[:2], 1), F32)
    return Part(frozen(zeros - F32(np.inf)), frozen(zeros), frozen(np.zeros_like(q)))


def assert_part(part: Part, expected: Part) -> None:
    __tracebackhide__ = True  # the line to show is the caller's
    for name in Part._fields:
        mine, right = getattr(part, name), getattr(expected, name)
        agree(mine, right, f"{name} of the part", **CLOSE)


def has_nan(array: np.ndarray) -> bool:
    return bool(np.isnan(array).any())


def cuts(rng: random.Random, n: int) -> list[slice]:
    """0 .. n in tiles of random lengths."""
    ends = [*sorted(rng.sample(range(1, n), rng.randint(0, min(n - 1, 6)))), n]
    return [slice(a, b) for a, b in zip([0, *ends], ends, strict=False)]


# ---------------------------------------------------------------- all at once


@pytest.mark.catches("scale-forgotten")
def test_a_score_is_query_times_key_over_the_root_of_the_heads_length() -> None:
    q = frozen(np.array([[[1, 2, 3, 4]], [[0, 0, 0, 8]]], F32))  # two KV heads, one query head each
    keys = frozen(np.array([[[1, 1, 1, 1], [0, 0, 0, 1]], [[2, 0, 0, 0], [9, 9, 9, 0]]], F32))
    right = [[[5.0, 1.0]], [[4.0, 0.0]]]  # (1+2+3+4) / 2, (1·2) / 2; 8 / 2, 0
    agree(scores_of(q, keys), right, "scores", rtol=1e-6)


def test_every_query_head_looks_at_the_keys_of_its_own_kv_head() -> None:
    rng = np.random.default_rng(1)
    for n in (1, 2, 7, 40):
        q, keys, _ = random_inputs(rng, n)
        scores = scores_of(q, keys)
        right = np.zeros((*q.shape[:2], n))
        for head, member, key in np.ndindex(*right.shape):
            right[head, member, key] = float(q[head, member] @ keys[key, head]) / q.shape[-1] ** 0.5
        agree(scores, right, f"scores of {n} keys", **CLOSE)


def test_plain_attention_is_the_formula() -> None:
    rng = np.random.default_rng(2)
    for n in (1, 2, 3, 20, 100):
        inputs = random_inputs(rng, n)
        agree(attend_plain(*inputs), attention(*inputs), f"attention over {n} keys", **CLOSE)


@pytest.mark.catches("one-max-for-all-heads")
def test_plain_attention_takes_the_largest_score_of_each_head_by_itself() -> None:
    inputs = heads_far_apart()
    out = attend_plain(*inputs)
    nan = has_nan(out)
    assert not nan, "NaN: a head whose weights are all zero"
    agree(out, attention(*inputs), "attention, scores near 150 beside scores near -150", **CLOSE)


def heads_far_apart() -> Inputs:
    """Two KV heads with two query heads each: scores near 150 for one of the four, else -150."""
    rng = np.random.default_rng(4)
    q, keys = np.ones((2, 2, 4), F32), np.zeros((20, 2, 4), F32)
    q[0, 1] = q[1] = -1
    keys[:, :, 1] = 300 + rng.uniform(0, 12, (20, 2))
    values = rng.standard_normal((20, 2, 4), F32)
    return frozen(q), frozen(keys), frozen(values)


@pytest.mark.catches("max-not-subtracted")
@pytest.mark.parametrize("size", [150.0, -150.0])
def test_plain_attention_bears_scores_that_exp_does_not(size: float) -> None:
    inputs = all_scores_near(size)
    out = attend_plain(*inputs)
    nan = has_nan(out)
    assert not nan, f"NaN for scores near {size:g}"
    agree(out, attention(*inputs), f"attention, scores near {size:g}", **CLOSE)


@pytest.mark.catches("max-not-subtracted")
def test_plain_attention_bears_large_and_small_scores_in_one_row() -> None:
    """Only under the largest score of the row is no weight above 1, whatever the others are."""
    q, values = frozen(np.ones((1, 1, 4), F32)), all_scores_near(0.0)[2]
    keys = np.zeros((50, 1, 4), F32)
    keys[:, 0, 1] = np.linspace(-300, 300, 50)  # scores are half of that
    out = attend_plain(q, frozen(keys), values)
    nan = has_nan(out)
    assert not nan, "NaN for scores from -150 to 150"
    agree(out, attention(q, keys, values), "attention, scores from -150 to 150", **CLOSE)


def all_scores_near(size: float) -> Inputs:
    """One head of 4 numbers, 50 keys, every score between size and size + 6."""
    rng = np.random.default_rng(3)
    q, (keys, values) = np.ones((1, 1, 4), F32), np.zeros((2, 50, 1, 4), F32)
    keys[:, 0, 1] = 2 * size + rng.uniform(0, 12, 50)
    values[:] = rng.standard_normal(values.shape)
    return frozen(q), frozen(keys.copy()), frozen(values.copy())


# ---------------------------------------------------------------- a tile at a time


@pytest.mark.catches("divides-each-tile")
def test_the_first_tile_is_summed_up_and_not_divided() -> None:
    rng = np.random.default_rng(5)
    for n in (1, 2, 9, 30):
        q, keys, values = random_inputs(rng, n)
        part = add_tile(nothing_seen(q), q, keys, values)
        assert_part(part, formula(q, keys, values))


def two_keys(scores: list[float]) -> tuple[Part, Part]:
    """Two tiles of one key each, with these scores and values 10 and 20: yours, and what is right.

    Where the second score is larger, everything before it was summed under an m that is out of
    date.
    """
    q, values = np.ones((1, 1, 1), F32), frozen(np.array([10, 20], F32).reshape(2, 1, 1))
    keys = frozen(np.array(scores, F32).reshape(2, 1, 1))
    first = add_tile(nothing_seen(q), q, keys[:1], values[:1])
    return add_tile(first, q, keys[1:], values[1:]), formula(q, keys, values)


@pytest.mark.catches("never-rescaled")
@pytest.mark.parametrize("scores", [[4.0, 1.0], [1.0, 4.0]], ids=["falling", "rising"])
def test_the_sum_of_weights_is_kept_under_the_newest_m(scores: list[float]) -> None:
    mine, right = two_keys(scores)
    agree(mine.m, right.m, f"m, scores {scores}", rtol=1e-6)
    agree(mine.l, right.l, f"l, scores {scores}", **CLOSE)


@pytest.mark.catches("values-not-rescaled")
@pytest.mark.parametrize("scores", [[4.0, 1.0], [1.0, 4.0]], ids=["falling", "rising"])
def test_the_sum_of_weighted_values_is_kept_under_the_newest_m(scores: list[float]) -> None:
    mine, right = two_keys(scores)
    agree(mine.acc, right.acc, f"acc, scores {scores}", **CLOSE)


def test_the_part_of_two_tiles_is_what_both_would_give_at_once() -> None:
    rng = np.random.default_rng(6)
    for _ in range(30):
        n = int(rng.integers(2, 30))
        q, keys, values = random_inputs(rng, n)
        cut = int(rng.integers(1, n))
        first = add_tile(nothing_seen(q), q, keys[:cut], values[:cut])
        assert_part(add_tile(first, q, keys[cut:], values[cut:]), formula(q, keys, values))


@pytest.mark.catches("max-starts-at-zero")
def test_a_walk_over_no_tiles_has_seen_nothing() -> None:
    q, keys, values = random_inputs(np.random.default_rng(7), 8)
    part = walk(q, keys, values, [])
    one = (*q.shape[:2], 1)
    agree(part.m, np.full(one, -np.inf), "m, the largest score of no keys")
    agree(part.l, np.zeros(one), "l, the weights of no keys")
    agree(part.acc, np.zeros(q.shape), "acc, the values of no keys")
    dtypes = {array.dtype.name for array in part}
    assert dtypes == {"float32"}


@pytest.mark.catches("max-starts-at-zero")
def test_a_walk_bears_scores_far_below_zero_and_far_above() -> None:
    for size in (-150.0, 150.0):
        inputs = all_scores_near(size)
        part = walk(*inputs, [slice(0, 20), slice(20, 50)])
        assert part.l.min() > 0, f"all weights are zero for scores near {size:g}"
        agree(part.acc / part.l, attention(*inputs), f"acc / l, scores near {size:g}", **CLOSE)


def test_a_walk_leaves_the_part_of_all_its_tiles_however_they_are_cut() -> None:
    rng, cut_rng = np.random.default_rng(8), random.Random(8)
    for _ in range(30):
        n = int(rng.integers(1, 60))
        inputs = random_inputs(rng, n)
        assert_part(walk(*inputs, cuts(cut_rng, n)), formula(*inputs))


@pytest.mark.catches("row-before-the-tiles")
def test_a_tile_is_not_read_before_its_turn() -> None:
    """A tile is brought when it is asked for; before, its place holds no number."""
    rng = np.random.default_rng(15)
    for _ in range(10):
        q, *brought = random_inputs(rng, 40)
        keys, values = (np.full_like(array, np.nan) for array in brought)
        part = walk(q, keys, values, as_they_come((keys, values), brought, 16))
        nan = has_nan(part.acc)
        assert not nan, "a tile was read before its turn"
        assert_part(part, formula(q, *brought))


def test_a_tile_may_lie_where_the_one_before_it_lay() -> None:
    rng = np.random.default_rng(17)
    q, *brought = random_inputs(rng, 40)
    keys, values = (np.full_like(array[:8], np.nan) for array in brought)

    def in_one_place() -> Iterator[slice]:
        for start in range(0, 40, 8):
            for place, array in zip((keys, values), brought, strict=True):
                place[:] = array[start : start + 8]
            yield slice(0, 8)

    assert_part(walk(q, keys, values, in_one_place()), formula(q, *brought))


def as_they_come(
    places: tuple[np.ndarray, np.ndarray], brought: list[np.ndarray], tile: int
) -> Iterator[slice]:
    for start in range(0, len(places[0]), tile):
        rows = slice(start, min(start + tile, len(places[0])))
        for place, array in zip(places, brought, strict=True):
            place[rows] = array[rows]
        yield rows


@pytest.mark.catches("keeps-the-whole-row", "row-before-the-tiles")
def test_a_walk_takes_memory_for_a_tile_and_not_for_the_row() -> None:
    """The scores of 64 query heads and 4,096 keys are 1 MiB, and so are the keys.

    Tiles are so small that even every product of one, kept apart in float64, is 256 KiB.
    """
    rng = np.random.default_rng(16)
    q = frozen(rng.standard_normal((1, 64, 64), F32))
    keys, values = (frozen(array) for array in rng.standard_normal((2, 4096, 1, 64), F32))
    tiles = [slice(start, start + 8) for start in range(0, 4096, 8)]
    small = peak_bytes(lambda: walk(q, keys, values, tiles)) < 512 * 1024
    assert small, "a walk over 512 tiles took half as much memory as a whole row, or more"


# ---------------------------------------------------------------- which tiles


@pytest.mark.catches("last-tile-is-full")
def test_the_tiles_of_one_walker_end_at_the_last_key() -> None:
    for n, tile, right in (
        (8, 4, [(0, 4), (4, 8)]),
        (10, 4, [(0, 4), (4, 8), (8, 10)]),
        (3, 8, [(0, 3)]),
        (0, 8, []),
    ):
        mine = spans(tiles_of(n, tile))
        assert mine == right, f"(start, stop) of the tiles of {tile} of {n} keys"


def test_tiles_are_dealt_out_in_turns() -> None:
    for split, right in enumerate(([(0, 4), (12, 16)], [(4, 8), (16, 18)], [(8, 12)])):
        mine = spans(tiles_of(18, 4, split, 3))
        assert mine == right, f"(start, stop) of the tiles of 4 of 18 keys, walker {split} of 3"


def spans(tiles: list[slice]) -> list[tuple[int, int]]:
    return [(tile.start, tile.stop) for tile in tiles]


@pytest.mark.catches("one-tile-a-split")
def test_every_key_is_in_one_tile_of_one_walker() -> None:
    rng = random.Random(10)
    for _ in range(100):
        n, tile, splits = rng.randint(0, 900), rng.randint(1, 64), rng.randint(1, 20)
        rows: list[int] = []
        for split in range(splits):
            tiles = tiles_of(n, tile, split, splits)
            assert all(part.start < part.stop <= part.start + tile for part in tiles)
            starts = [part.start for part in tiles]
            assert starts == sorted(starts)
            assert all(start % tile == 0 for start in starts)
            rows += [row for part in tiles for row in range(part.start, part.stop)]
        given = f"{n} keys, tiles of {tile}, {splits} walkers"
        missing, beyond = sorted(set(range(n)) - set(rows)), sorted(set(rows) - set(range(n)))
        assert missing[:5] == [], f"keys in no tile: {given}"
        assert beyond[:5] == [], f"keys that there are not: {given}"
        assert len(rows) == n, f"a key is in two tiles: {given}"


# ---------------------------------------------------------------- split and combined


@pytest.mark.catches("parts-are-averaged")
def test_a_split_with_large_scores_weighs_more_than_one_that_saw_as_many_keys() -> None:
    one = np.ones((1, 1, 1), F32)
    numbers = [[0, 2, 2], [5, 2, 20]]  # m, l and acc of each
    low, high = (Part(*(frozen(number * one) for number in part)) for part in numbers)
    both = combine([low, high])
    share = 2 * np.exp(-5.0)
    right = (share * 1 + 2 * 10) / (share + 2)  # 1 from the first, 10 from the second
    agree(both.acc / both.l, np.full((1, 1, 1), right), "acc / l of both", **CLOSE)


def test_parts_combine_to_the_part_of_all_their_keys() -> None:
    rng, cut_rng = np.random.default_rng(11), random.Random(11)
    for _ in range(30):
        n = int(rng.integers(1, 40))
        q, keys, values = random_inputs(rng, n)
        parts = [formula32(q, keys[rows], values[rows]) for rows in cuts(cut_rng, n)]
        cut_rng.shuffle(parts)
        assert_part(combine(parts), formula(q, keys, values))


def formula32(q: np.ndarray, keys: np.ndarray, values: np.ndarray) -> Part:
    return Part(*(frozen(array.astype(F32)) for array in formula(q, keys, values)))


@pytest.mark.catches("empty-part-is-nan")
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_parts_that_saw_no_key_change_nothing_wherever_they_stand() -> None:
    rng = np.random.default_rng(12)
    q, keys, values = random_inputs(rng, 12)
    empty, seen = nothing_seen(q), formula32(q, keys, values)
    for parts in ([seen, empty], [empty, seen], [empty, empty, seen], [empty, seen, empty, empty]):
        both = combine(parts)
        nan = has_nan(both.acc)
        assert not nan, f"NaN from {len(parts)} parts, one with keys"
        assert_part(both, formula(q, keys, values))


# ---------------------------------------------------------------- all together


def test_three_ways_give_one_attention() -> None:
    rng = np.random.default_rng(14)
    for _ in range(40):
        n = int(rng.integers(1, 200))
        tile, splits = int(rng.integers(1, 64)), int(rng.integers(1, 12))
        inputs = random_inputs(rng, n)
        right = attention(*inputs)
        agree(attend_plain(*inputs), right, f"plain, {n} keys", **CLOSE)
        agree(attend_tiled(*inputs, tile), right, f"{n} keys in tiles of {tile}", **CLOSE)
        split = attend_split(*inputs, splits, tile)
        agree(split, right, f"{n} keys in tiles of {tile}, {splits} walkers", **CLOSE)


def test_the_engine_writes_with_your_attention_what_it_should() -> None:
    """The shipped checkpoint against the text that transformers wrote with it."""
    golden = json.loads((SHIPPED / "greedy.json").read_text(encoding="utf-8"))["prompts"][0]
    tiny = open_checkpoint(SHIPPED)
    eager, limits = GraphDispatcher("NONE", [], 1), limits_for(tiny.config, 1)
    runner = SimRunner(Device(load_spec("h200")), tiny.config, tiny.weights, limits, eager)
    request = Request("r", golden["prompt_ids"], len(golden["ids"]))
    assert list(Engine(runner, limits, eager).run([request])[0].tokens) == golden["ids"]
