"""bench/intervals.py: intervals that hold what they say, and ratios of pairs. Several processes:
labs/lab14_measure_itl."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.lab14_measure_itl.processes import STUDENT_T
from mini_engine.bench.intervals import median_interval, paired_ratio


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_an_interval_holds_its_median(samples: list[float]) -> None:
    found = median_interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == pytest.approx(np.median(samples))
    assert found == median_interval(samples)  # a fixed seed: the same twice


def test_a_ratio_is_paired_lap_by_lap() -> None:
    """A drift of both by a factor of ten leaves no mark on it."""
    anchors = [10.0, 100.0, 20.0, 30.0]
    found = paired_ratio(anchors, [1.5 * us for us in anchors])
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert found.samples == 4
    with pytest.raises(ValueError):
        paired_ratio([1.0], [1.0, 2.0])


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError):
        median_interval([])


def test_students_t_is_the_97_5_percent_point() -> None:
    """By adding up the density, (1 + x²/df)^(-(df + 1)/2) times its constant, from 0 to t."""
    for df, t in enumerate(STUDENT_T, 1):
        constant = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
        x = np.linspace(0, t, 200_001)
        inside = np.trapezoid(constant * (1 + x**2 / df) ** (-(df + 1) / 2), x)
        assert 0.5 + inside == pytest.approx(0.975, abs=2e-5)
