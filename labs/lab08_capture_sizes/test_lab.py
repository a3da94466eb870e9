"""Lab 8: the ladder. What you write is held against searching through everything."""

from __future__ import annotations

import random
from itertools import combinations
from types import MappingProxyType

import pytest

from mini_engine.dispatch.default_ladder import _decode_sizes, _grid, default_capture_sizes
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


# ---------------------------------------------------------------- rung


@pytest.mark.catches("a-rung-is-above", "round-down")
def test_a_batch_runs_at_the_smallest_rung_that_has_room_for_it() -> None:
    for ladder in ladders(1, 40):
        for rows in range(1, ladder.top + 1):
            smallest = min(size for size in ladder if size >= rows)
            assert ladder.rung(rows) == smallest


@pytest.mark.catches("a-rung-for-all")
def test_a_batch_above_the_top_has_no_rung() -> None:
    for ladder in ladders(2, 20):
        top = ladder.top
        assert ladder.rung(top) == top
        assert ladder.rung(top + 1) is None
        assert ladder.rung(2 * top + 7) is None


def test_no_rows_need_no_rung_and_fewer_than_none_are_refused() -> None:
    for ladder in (CaptureLadder([4]), CaptureLadder([1, 2])):
        assert ladder.rung(0) == 0
        for rows in (-1, -3):
            with pytest.raises(ValueError):
                ladder.rung(rows)


# ---------------------------------------------------------------- waste


@pytest.mark.catches("a-size-is-one-step", "eager-is-padded", "round-down")
def test_waste_is_what_one_counts_step_by_step() -> None:
    rng = random.Random(3)
    for most, ladder in enumerate(sorted(ladders(4, 40), key=len)):  # few batches and rungs first
        histogram = {rng.randint(0, 99): rng.randint(0, 50) for _ in range(min(most, 30))}
        padded = real = eager_rows = eager_steps = 0
        for rows, steps in histogram.items():
            for _ in range(steps):
                real += rows
                rungs = [size for size in (0, *ladder) if size >= rows]
                padded += min(rungs) - rows if rungs else 0
                eager_rows += 0 if rungs else rows
                eager_steps += 0 if rungs else 1
        found, counted = ladder.waste(histogram), Waste(padded, real, eager_rows, eager_steps)
        assert vars(found) == vars(counted), f"of the batches {histogram} on {list(ladder)}"


def test_waste_is_that_of_the_steps_and_not_of_a_histogram_with_the_same_sizes() -> None:
    ladder, histogram = CaptureLadder([4, 8]), {3: 5, 9: 1}
    assert ladder.waste(histogram) == Waste(5, 24, 9, 1)
    histogram[3] = 7
    assert ladder.waste(histogram) == Waste(7, 30, 9, 1)


def test_a_histogram_below_zero_is_refused_and_one_is_only_read() -> None:
    for histogram in ({3: -5}, {-3: 5}, {1: 1, 9: -1}):
        with pytest.raises(ValueError):
            CaptureLadder([4]).waste(histogram)
    found = CaptureLadder([4]).waste(MappingProxyType({0: 2, 3: 5, 7: 0, 9: 1}))
    assert found == Waste(5, 24, 9, 1)


# ---------------------------------------------------------------- the wasted fraction


@pytest.mark.catches("waste-of-the-real")
def test_the_wasted_fraction_is_of_all_rows_that_were_computed() -> None:
    assert Waste(700, 3300, 0, 0).wasted_fraction == pytest.approx(7 / 40)
    assert Waste(1, 1, 0, 0).wasted_fraction == pytest.approx(1 / 2)
    assert Waste(0, 5, 0, 0).wasted_fraction == 0.0


@pytest.mark.catches("eager-is-not-computed")
def test_rows_that_ran_eagerly_were_computed_too() -> None:
    waste = Waste(padded_rows=7, real_rows=33 + 100, eager_rows=100, eager_steps=1)
    assert waste.wasted_fraction == pytest.approx(7 / (7 + 33 + 100))
    assert Waste(0, 100, 100, 1).wasted_fraction == 0.0


def test_where_nothing_was_computed_nothing_is_wasted() -> None:
    assert Waste(0, 0, 0, 0).wasted_fraction == 0.0


# ---------------------------------------------------------------- the cheapest rungs


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
    for trial in range(60):
        sizes = sorted(rng.sample(range(1, 60), 1 + trial * 7 // 60))  # few first
        # whole numbers: however they are added, the sum is the same
        price = [float(rng.choice([size, rng.randint(1, 60)])) for size in sizes]
        steps = [rng.choice([0, 1, 7, 90]) for _ in sizes]
        rungs = rng.randint(1, 7)
        found = cheapest_rungs(tuple(sizes), tuple(price), tuple(steps), rungs)
        given = f"candidates {sizes} at {price} each, {steps} steps"
        answers = len(found)
        assert answers == min(rungs, len(sizes)), f"answers, for at most 1, 2 … {rungs}: {given}"
        for most, chosen in enumerate(found, start=1):
            others = [
                (*some, sizes[-1])
                for number in range(most)
                for some in combinations(sizes[:-1], number)
            ]
            best = min(others, key=lambda other: (cost_of(other, sizes, price, steps), len(other)))
            assert chosen in others, f"a rising choice of at most {most} with the last: {given}"
            of_this, least = (cost_of(tuple(c), sizes, price, steps) for c in (chosen, best))
            assert of_this == least, f"cost of {chosen}, and of {best}: {given}"
            number, fewest = len(chosen), len(best)
            assert number == fewest, f"rungs of {chosen}, and of the equally cheap {best}: {given}"


def test_the_choice_is_the_same_in_whatever_unit_the_price_is() -> None:
    rng = random.Random(7)
    for _ in range(20):
        sizes = sorted(rng.sample(range(1, 60), 6))
        price = [float(rng.randint(1, 60)) for _ in sizes]
        steps = [rng.choice([1, 7, 90]) for _ in sizes]
        found = cheapest_rungs(sizes, price, steps, 6)
        for unit in (2.0**-70, 2.0**70):  # powers of two scale without rounding
            scaled = cheapest_rungs(sizes, [one * unit for one in price], steps, 6)
            assert scaled == found, f"sizes {sizes} at {price} each, {steps} steps, times {unit}"


def test_billions_of_steps_are_counted() -> None:
    many = (
        2**33
    )  # a rung at 1 beside the 3 saves 2 rows for each step of 1, one at 2 a row for both
    for more, best in ((10_000, (2, 3)), (-10_000, (1, 3))):
        found = cheapest_rungs([1, 2, 3], [1.0, 2.0, 3.0], [many, many + more, 5], 2)
        assert found[-1] == best, f"{many} steps of 1, {many + more} of 2"


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


# ---------------------------------------------------------------- the grid


def on_the_grid(size: int) -> bool:
    return size in (1, 2, 4) or size % (8 if size < 256 else 16) == 0


@pytest.mark.catches("every-8-all-the-way", "the-top-is-no-rung", "the-top-is-left-out")
def test_the_grid_has_1_2_4_and_every_8_then_every_16_and_nothing_above_its_top() -> None:
    for top in (1, 2, 3, 4, 7, 8, 9, 16, 24, 40, 100, 248, 255, 256, 257, 264, 272, 500, 512, 1024):
        grid, wanted = _grid(top), [size for size in range(1, top + 1) if on_the_grid(size)]
        missing, extra = sorted({*wanted} - {*grid}), sorted({*grid} - {*wanted})
        assert (missing, extra) == ([], []), f"sizes missing and too many, up to a top of {top}"
        assert grid == wanted, f"rising, each once, up to a top of {top}"


# ---------------------------------------------------------------- sizes of decode batches


@pytest.mark.catches("off-the-grid-cliff")
def test_without_speculation_the_size_of_the_fullest_decode_batch_is_added() -> None:
    for requests in (1, 6, 8, 33, 256):
        found = sorted(set(_decode_sizes(requests, 1)))
        assert found == [requests], f"sizes for {requests} requests of one token"


@pytest.mark.catches("only-the-fullest-batch", "rungs-count-requests")
def test_with_speculation_there_is_a_size_for_each_number_of_requests_on_the_grid() -> None:
    for requests in (1, 2, 3, 6, 8, 20, 33, 300):
        for query_len in (3, 2, 7):
            found = sorted(set(_decode_sizes(requests, query_len)))
            numbers = {n for n in range(1, requests + 1) if on_the_grid(n)} | {requests}
            wanted = sorted(n * query_len for n in numbers)
            assert found == wanted, f"{requests} requests of {query_len} tokens"


# ---------------------------------------------------------------- all together


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
def test_in_the_default_ladder_a_rung_is_a_number_of_requests_times_their_tokens() -> None:
    for speculative in (1, 2, 6):
        query_len = 1 + speculative
        for requests in (1, 3, 8, 20):
            sizes = default_capture_sizes(requests, 8192, num_speculative_tokens=speculative)
            top = sizes[-1]
            wanted = {n * query_len for n in (1, 2, 4, 8, 16, requests) if n <= requests}
            assert {size for size in wanted if size <= top} <= set(sizes)
    assert default_capture_sizes(3, 8192, num_speculative_tokens=1) == [1, 2, 4, 6, 8]
