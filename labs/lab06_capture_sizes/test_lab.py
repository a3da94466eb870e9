"""Lab 6: the ladder. What you write is held against searching through everything."""

from __future__ import annotations

import random
from itertools import combinations

import pytest

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.ladder import (
    CaptureLadder,
    Waste,
    best_ladders,
    cheapest_rungs,
    optimal_ladder,
)


def ladders(seed: int, number: int) -> list[CaptureLadder]:
    rng = random.Random(seed)
    return [
        CaptureLadder(sorted(rng.sample(range(1, 80), rng.randint(1, 9)))) for _ in range(number)
    ]


@pytest.mark.catches("round-down")
def test_a_batch_runs_at_the_smallest_rung_that_has_room_for_it() -> None:
    for ladder in ladders(1, 40):
        for n in range(1, ladder.top + 1):
            assert ladder.rung(n) == min(size for size in ladder if size >= n)


@pytest.mark.catches("a-rung-for-all")
def test_a_batch_above_the_top_has_no_rung() -> None:
    for ladder in ladders(2, 20):
        assert ladder.rung(ladder.top) == ladder.top
        assert ladder.rung(ladder.top + 1) is None


def test_no_rows_need_no_rung_and_fewer_than_none_are_refused() -> None:
    assert CaptureLadder([4]).rung(0) == 0
    with pytest.raises(ValueError, match="-3"):
        CaptureLadder([4]).rung(-3)


@pytest.mark.catches("eager-is-padded", "round-down")
def test_waste_is_what_one_counts_step_by_step() -> None:
    rng = random.Random(3)
    for ladder in ladders(4, 40):
        histogram = {rng.randint(1, 99): rng.randint(0, 50) for _ in range(rng.randint(0, 30))}
        padded = real = eager_rows = eager_steps = 0
        for rows, steps in histogram.items():
            for _ in range(steps):
                real += rows
                rungs = [size for size in ladder if size >= rows]
                padded += min(rungs) - rows if rungs else 0
                eager_rows += 0 if rungs else rows
                eager_steps += 0 if rungs else 1
        assert ladder.waste(histogram) == Waste(padded, real, eager_rows, eager_steps)


def test_a_histogram_below_zero_is_refused() -> None:
    with pytest.raises(ValueError, match="-5"):
        CaptureLadder([4]).waste({3: -5})


@pytest.mark.catches("waste-of-the-real")
def test_the_wasted_fraction_is_of_all_rows_that_were_computed() -> None:
    assert CaptureLadder([40]).waste({33: 100}).wasted_fraction == pytest.approx(7 / 40)
    assert CaptureLadder([40]).waste({}).wasted_fraction == 0.0


def cost_of(
    chosen: tuple[int, ...], candidates: list[int], price: list[float], steps: list[int]
) -> float:
    at = dict(zip(candidates, price, strict=True))
    return sum(
        n * at[min(c for c in chosen if c >= size)]
        for size, n in zip(candidates, steps, strict=True)
    )


@pytest.mark.catches("greedy-rungs")
def test_the_chosen_rungs_cost_as_little_as_the_best_of_all_choices() -> None:
    rng = random.Random(5)
    for _ in range(60):
        candidates = sorted(rng.sample(range(1, 60), rng.randint(1, 7)))
        price = [round(size * rng.uniform(0.5, 1.5), 2) for size in candidates]
        steps = [rng.choice([0, 1, 7, 90]) for _ in candidates]
        found = cheapest_rungs(candidates, price, steps, 6)
        assert len(found) == min(6, len(candidates))
        for most, chosen in enumerate(found, start=1):
            assert list(chosen) == sorted(set(chosen))
            assert chosen[-1] == candidates[-1], "the last candidate is always a rung"
            others = [
                (*some, candidates[-1])
                for size in range(most)
                for some in combinations(candidates[:-1], size)
            ]
            costs = {other: cost_of(other, candidates, price, steps) for other in others}
            least = min(costs.values())
            assert costs[chosen] == pytest.approx(least, rel=1e-12, abs=1e-9)
            fewest = min(len(o) for o, c in costs.items() if c <= least + 1e-9)
            assert len(chosen) == fewest, "of equally cheap choices, one with the fewest rungs"


@pytest.mark.catches("greedy-rungs")
def test_a_rung_also_serves_the_batches_below_it() -> None:
    # 10 and 11 are busiest, but a rung at 3 saves more than one at 10 beside 11
    assert optimal_ladder({1: 30, 3: 40, 10: 100, 11: 100}, rungs=2) == (3, 11)


@pytest.mark.catches("greedy-rungs")
def test_a_rung_that_was_best_among_two_need_not_be_among_three() -> None:
    sizes = list(range(1, 10))
    two, three = cheapest_rungs(sizes, sizes, [1] * 9, 3)[1:]
    assert two in {(4, 9), (5, 9)}
    assert three == (3, 6, 9)


def test_more_rungs_never_waste_more() -> None:
    rng = random.Random(6)
    histogram = {rng.randint(1, 300): rng.randint(1, 1000) for _ in range(60)}
    wasted = [ladder.waste(histogram).padded_rows for ladder in best_ladders(histogram, 20)]
    assert wasted == sorted(wasted, reverse=True)


def test_the_default_ladder_is_vllms() -> None:
    sizes = default_capture_sizes(256, 8192)
    assert len(sizes) == 51
    assert sizes[:6] == [1, 2, 4, 8, 16, 24]
    assert sizes[-3:] == [480, 496, 512]
    assert 256 in sizes and 264 not in sizes  # noqa: PT018
    assert default_capture_sizes(2, 8192) == [1, 2, 4]
    assert CaptureLadder(sizes).rung(33) == 40


@pytest.mark.catches("off-the-grid-cliff")
def test_the_fullest_decode_batch_always_has_a_rung_of_its_own() -> None:
    assert default_capture_sizes(6, 8192) == [1, 2, 4, 6, 8]
    for requests in range(1, 257):
        assert CaptureLadder(default_capture_sizes(requests, 8192)).rung(requests) == requests


@pytest.mark.catches("rungs-count-requests")
def test_with_speculation_a_rung_is_a_number_of_requests_times_their_tokens() -> None:
    for speculative in (1, 2, 6):
        query_len = 1 + speculative
        for requests in (1, 3, 8, 20):
            sizes = default_capture_sizes(requests, 8192, num_speculative_tokens=speculative)
            top = sizes[-1]
            wanted = {n * query_len for n in (1, 2, 4, 8, 16, requests) if n <= requests}
            assert {size for size in wanted if size <= top} <= set(sizes)
    assert default_capture_sizes(3, 8192, num_speculative_tokens=1) == [1, 2, 4, 6, 8]
