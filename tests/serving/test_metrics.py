"""Claims about percentiles, the histogram and the padding waste."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.serving.report import _EDGES, GROWTH, LogHistogram, percentile

latencies = st.floats(1e-2, 1e9)
half_bin = (GROWTH**0.5 - 1) * (1 + 1e-9)  # a percentile is a bin's middle


@given(values=st.lists(latencies, min_size=1), percent=st.floats(0, 100))
def test_percentile_is_the_least_value_that_enough_values_do_not_exceed(
    values: list[float], percent: float
) -> None:
    answer = percentile(values, percent)
    enough = percent * len(values) / 100
    assert answer in values
    assert sum(v <= answer for v in values) >= enough
    smaller = [v for v in values if v < answer]
    assert not smaller or len(smaller) < enough


@given(
    values=st.lists(st.tuples(latencies, st.integers(1, 50)), min_size=1), percent=st.floats(0, 100)
)
def test_histogram_percentile_is_within_half_a_bin(
    values: list[tuple[float, int]], percent: float
) -> None:
    histogram = LogHistogram()
    for value, weight in values:
        histogram.add(value, weight)
    repeated = [value for value, weight in values for _ in range(weight)]
    assert histogram.percentile(percent) == pytest.approx(
        percentile(repeated, percent), rel=half_bin
    )
    assert half_bin < 0.0025
    assert histogram.count == len(repeated)
    assert (histogram.min, histogram.max) == (min(repeated), max(repeated))
    assert sum(histogram._counts) == len(repeated)


@given(
    first=st.floats(0.5, 1e6),
    step=st.one_of(st.just(0.0), st.floats(1e-9, 1e3)),
    terms=st.integers(1, 400),
    weight=st.integers(1, 300),
)
def test_a_ramp_equals_its_terms_one_by_one(
    first: float, step: float, terms: int, weight: int
) -> None:
    ramp, one_by_one = LogHistogram(), LogHistogram()
    ramp.add_ramp(first, step, terms, weight)
    for i in range(terms):
        one_by_one.add(first + i * step, weight)
    assert ramp._counts == one_by_one._counts
    assert (ramp.count, ramp.min, ramp.max) == (one_by_one.count, one_by_one.min, one_by_one.max)


@given(seed=st.integers(0, 2**32))
def test_a_ramp_that_just_reaches_an_edge_equals_its_terms(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(10):  # one in twenty needs the last digit to be right
        edge = _EDGES[rng.randint(1000, 6000)]
        first, steps = edge * rng.random(), rng.randint(1, 500)
        step = (edge - first) / steps  # so that a term is the edge, or the float next to it
        ramp, one_by_one = LogHistogram(), LogHistogram()
        ramp.add_ramp(first, step, steps + 2)
        for i in range(steps + 2):
            one_by_one.add(first + i * step)
        assert ramp._counts == one_by_one._counts


def test_a_ramp_of_a_billion_terms_is_as_cheap_as_its_bins() -> None:
    histogram = LogHistogram()
    histogram.add_ramp(100.0, 1e-6, 10**9, weight=8)  # 100 us to 1100 us: some 480 bins
    assert histogram.count == 8 * 10**9
    assert histogram.percentile(50) == pytest.approx(600.0, rel=half_bin)


def test_values_beyond_the_range_are_counted_at_the_ends() -> None:
    histogram = LogHistogram()
    for value in (0.0, 1e-9, 5e14):
        histogram.add(value)
    assert histogram.count == 3
    assert (histogram.percentile(0), histogram.percentile(100)) == (0.0, 5e14)
