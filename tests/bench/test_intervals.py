"""bench/intervals.py: intervals that hold what they say, within a process and across several."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.bench.intervals import (
    MAX_PROCESSES,
    STUDENT_T,
    median_interval,
    pooled_interval,
    pooled_ratio,
)

TRUTH = 100.0


@given(st.lists(st.floats(0.1, 1e6), min_size=1, max_size=30))
def test_an_interval_holds_its_median(samples: list[float]) -> None:
    found = median_interval(samples)
    assert min(samples) <= found.low <= found.median <= found.high <= max(samples)
    assert found.median == pytest.approx(np.median(samples))
    assert found == median_interval(samples)  # a fixed seed: the same twice


def test_an_interval_of_one_process_covers_the_truth_about_as_often_as_it_says() -> None:
    rng, covered = np.random.default_rng(0), 0
    for _ in range(200):
        found = median_interval(rng.normal(TRUTH, 5, 25).tolist())
        covered += found.low <= TRUTH <= found.high
    assert 0.88 <= covered / 200 <= 1.0  # 95%, give or take three deviations of 200 draws


def processes(rng: np.random.Generator, count: int) -> list[list[float]]:
    """Processes that differ by 1%, their laps by 0.5%."""
    return [rng.normal(TRUTH * (1 + 0.01 * rng.standard_normal()), 0.5, 20).tolist()
            for _ in range(count)]  # fmt: skip


@pytest.mark.parametrize("count", [2, 3, 5])
def test_an_interval_of_several_covers_what_processes_differ_by(count: int) -> None:
    rng, covered = np.random.default_rng(count), 0
    for _ in range(400):
        found = pooled_interval(processes(rng, count))
        covered += found.low <= TRUTH <= found.high
    assert 0.91 <= covered / 400 <= 0.99  # 95%, give or take three deviations of 400 draws


def test_laps_taken_together_or_a_bootstrap_of_three_processes_would_not_cover_it() -> None:
    """Why `pooled_interval` is what it is."""
    rng, together, inside = np.random.default_rng(0), 0, 0
    for _ in range(200):
        groups = processes(rng, 3)
        all_laps = median_interval([lap for group in groups for lap in group])
        together += all_laps.low <= TRUTH <= all_laps.high
        medians = [float(np.median(group)) for group in groups]
        inside += min(medians) <= TRUTH <= max(medians)  # as far as a bootstrap can reach
    assert together / 200 < 0.6
    assert inside / 200 < 0.85  # 3 of 4


def test_one_process_is_its_laps_and_three_are_the_mean_of_their_medians() -> None:
    laps = [1.0, 2.0, 9.0]
    assert pooled_interval([laps]) == median_interval(laps)
    found = pooled_interval([laps, [3.0, 3.0], [4.0]])
    assert (found.median, found.samples, found.processes) == (3.0, 6, 3)
    half = 4.303 * 1.0 / math.sqrt(3)  # medians 2, 3, 4: a deviation of 1
    assert (found.low, found.high) == pytest.approx((3 - half, 3 + half))


def test_a_ratio_is_paired_lap_by_lap() -> None:
    """A drift of both by a factor of ten leaves no mark on it."""
    anchors = [[10.0, 100.0, 20.0], [30.0, 40.0, 50.0]]
    others = [[1.5 * us for us in group] for group in anchors]
    found = pooled_ratio(anchors, others)
    assert (found.low, found.median, found.high) == pytest.approx((1.5, 1.5, 1.5))
    assert (found.samples, found.processes) == (6, 2)


def test_students_t_is_the_97_5_percent_point() -> None:
    """By adding up the density, (1 + x²/df)^(-(df + 1)/2) times its constant, from 0 to t."""
    for df, t in enumerate(STUDENT_T, 1):
        constant = math.gamma((df + 1) / 2) / math.gamma(df / 2) / math.sqrt(df * math.pi)
        x = np.linspace(0, t, 200_001)
        inside = np.trapezoid(constant * (1 + x**2 / df) ** (-(df + 1) / 2), x)
        assert 0.5 + inside == pytest.approx(0.975, abs=2e-5)


def test_nothing_measured_is_an_error() -> None:
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])
    with pytest.raises(ValueError, match="one of the processes measured nothing"):
        pooled_interval([[1.0], []])
    for count in (0, MAX_PROCESSES + 1):
        with pytest.raises(ValueError, match=f"{count} processes: expected 1 to {MAX_PROCESSES}"):
            pooled_interval([[1.0]] * count)
    with pytest.raises(ValueError, match="laps: pairs need equally many"):
        pooled_ratio([[1.0]], [[1.0, 2.0]])
