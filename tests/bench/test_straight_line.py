"""Straight lines: the one with the least relative misses, and its error where it was not fitted.
What a calibration makes of it: tests/bench/test_calibrate.py."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.bench import spec_fit
from mini_engine.bench.intervals import LEAST_US, held_out_percent, line, line_fit

NODES = (1, 16, 64, 256, 1024)
times = st.lists(st.floats(0.5, 1e4), min_size=len(NODES), max_size=len(NODES))


def cost(base: float, slope: float, times_us: list[float]) -> float:
    counts, us = np.asarray(NODES), np.asarray(times_us)
    return float((((us - base - slope * counts) / us) ** 2).sum())


@given(times, st.floats(-0.2, 0.2), st.floats(-0.2, 0.2))
def test_no_line_near_by_has_smaller_relative_misses(
    times_us: list[float], more: float, steeper: float
) -> None:
    base, slope = line(NODES, times_us)
    other = cost(base + more * (1 + abs(base)), slope + steeper * (0.01 + abs(slope)), times_us)
    assert cost(base, slope, times_us) <= other * (1 + 1e-9) + 1e-12


@given(st.floats(0.1, 100), st.floats(1e-3, 10))
def test_points_on_a_line_tell_each_other(base: float, slope: float) -> None:
    told = held_out_percent(NODES, [base + slope * n for n in NODES])
    assert told == pytest.approx([0] * len(NODES), abs=1e-6)


def test_a_point_off_the_line_is_judged_by_the_others_alone() -> None:
    bent = [3.0, 12.0, 150.0]  # the first two say 102
    assert held_out_percent((1, 10, 100), bent)[-1] == pytest.approx(100 * (102 / 150 - 1))
    fit = line_fit((1, 10, 100), bent)
    worst = max(abs(r) / t for r, t in zip(fit["residuals_us"], fit["us"], strict=True))
    assert worst < 0.3 < spec_fit.held_out({"graph_launch": fit})["graph_launch"]


def test_fewer_than_three_points_say_nothing_about_each_other() -> None:
    assert held_out_percent((1, 10), [3.0, 12.0]) == []
    assert spec_fit.held_out({"capture": line_fit((1, 10), [3.0, 12.0]), "x": {"median": 1}}) == {}


def test_a_time_of_nothing_divides_nothing_by_zero() -> None:
    assert all(np.isfinite(line((1, 2, 4), [0.0, 1.0, 3.0])))
    assert held_out_percent((1, 2, 4), [0.0, 1.0, 3.0])[0] == pytest.approx(-100, abs=1)
    assert LEAST_US < 0.01
