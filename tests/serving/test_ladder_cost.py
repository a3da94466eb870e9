"""What the graphs of a ladder cost: counted, timed and weighed; and what the best ladder saves."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import best_ladders, optimal_ladder
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import (
    MEMORY_WITHIN,
    TIME_WITHIN,
    LadderCosts,
    optimal_ladder_saving,
)
from mini_engine.serving.replay import replay
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import TraceRequest, synthetic_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.step_model import StepModel
from mini_engine.validate.points import SHIPPED_POINTS

SHAPE, H200 = named_shape("qwen3-0.6b"), load_spec("h200")


def test_vllm_with_256_requests_and_28_layers_holds_51_times_29_pieces_and_35_graphs() -> None:
    cost = LadderCosts(SHAPE, H200, "FULL_AND_PIECEWISE", 256).of(default_capture_sizes(256, 8192))
    assert cost.piecewise_rungs == 51
    assert cost.piecewise_graphs == 51 * 29
    assert (cost.full_graphs, cost.graphs) == (35, 51 * 29 + 35)


histograms = st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=8)


@given(histogram=histograms, rungs=st.integers(1, 6))
def test_with_each_rung_the_best_ladder_pads_no_more_and_takes_no_less_to_capture(
    histogram: dict[int, int], rungs: int
) -> None:
    costs = LadderCosts(SHAPE, H200, "FULL", 64)
    ladders = best_ladders(histogram, rungs, top=48)
    assert ladders == [optimal_ladder(histogram, len(one), top=48) for one in ladders]
    padded = [one.waste(histogram).padded_rows for one in ladders]
    assert padded == sorted(padded, reverse=True)
    captured = [costs.of(one).capture_us for one in ladders]
    assert captured == sorted(captured)


# ---------------------------------------------------------------- what a better ladder saves

COSTS = StepModel(named_shape("qwen3-1.7b"), load_spec("l4"))
LIMITS = SchedulerLimits(12, 256, 20_000, 16, 40_960)


def run(trace: list[TraceRequest], mode: str, sizes: list[int]) -> ServeReport:
    return replay(trace, COSTS, LIMITS, GraphDispatcher(mode, sizes, 12))


def test_five_equal_requests_want_a_rung_of_five() -> None:
    trace = [TraceRequest(0.0, 10, 100)] * 5
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [4, 12], 12)
    report = replay(trace, COSTS, LIMITS, dispatcher)
    saving = optimal_ladder_saving(report, COSTS, dispatcher)
    assert saving is not None
    assert saving.capture_sizes == (5, 12)
    assert (report.padded_rows, saving.saved_rows, saving.padded_rows) == (99 * 7, 99 * 7, 0)
    # The batch never changes, so running again with the new ladder saves exactly that.
    again = run(trace, "FULL_DECODE_ONLY", [5, 12])
    assert saving.saved_us == pytest.approx(report.busy_us - again.busy_us, rel=1e-9)
    assert saving.saved_share == pytest.approx(saving.saved_us / report.busy_us)
    assert saving.saved_us > 0


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL", "FULL_AND_PIECEWISE", "FULL_DECODE_ONLY"])
def test_rows_are_those_of_the_same_steps_on_the_other_ladder(mode: str) -> None:
    sizes = [1, 3, 8, 12, 64, 256]
    trace = list(synthetic_trace(80, seed=4, requests_per_s=3.0))
    dispatcher = GraphDispatcher(mode, sizes, 12)
    report = replay(trace, COSTS, LIMITS, dispatcher)
    saving = optimal_ladder_saving(report, COSTS, dispatcher)
    assert saving is not None
    assert saving.padded_rows + saving.saved_rows == report.padded_rows
    assert saving.saved_rows >= 0
    assert len(saving.capture_sizes) <= len(sizes)
    assert saving.capture_sizes[-1] == sizes[-1]


@pytest.mark.parametrize("mode", ["FULL_DECODE_ONLY", "PIECEWISE"])
def test_a_ladder_of_fewer_rows_that_takes_longer_saves_nothing(mode: str) -> None:
    sizes = [3, 8] if mode == "FULL_DECODE_ONLY" else [882, 8192]
    trace = list(synthetic_trace(40, seed=1, requests_per_s=5))
    dispatcher = GraphDispatcher(mode, sizes, 4)
    costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
    report = replay(trace, costs, SchedulerLimits(4, 8192, 20_000, 16, 40_960), dispatcher)
    saving = optimal_ladder_saving(report, costs, dispatcher)
    assert saving is not None
    assert saving.saved_us >= 0
    if not saving.saved_rows:
        assert (saving.capture_sizes, saving.saved_us) == (tuple(sizes), 0)
        assert saving.padded_rows <= report.padded_rows


def test_without_graphs_there_is_no_ladder_to_better() -> None:
    dispatcher = GraphDispatcher("NONE", [1, 2], 12)
    report = replay([TraceRequest(0.0, 5, 5)], COSTS, LIMITS, dispatcher)
    assert optimal_ladder_saving(report, COSTS, dispatcher) is None


# ---------------------------------------------------------------- what others saw at start-up

CAPTURES: list[dict[str, Any]] = json.loads(SHIPPED_POINTS.with_name("captures.json").read_text())
COLLECTOR_S = 0.4  # of Python's garbage collector, at each size


def sizes_of(count: int) -> list[int]:
    """So many sizes: every 16 above 256 where the list is of 2026, every 8 before."""
    coarse = range(272, 513, 16) if count == 51 else range(264, 513, 8)
    return [1, 2, 4, *range(8, 257, 8), *coarse][:count]


def shares(capture: dict[str, Any]) -> tuple[float, float]:
    """Seconds and bytes of a published start-up, over what is predicted."""
    spec = load_spec(capture["card"], engine=capture["engine"])
    costs = [
        LadderCosts(named_shape(capture["model"]), spec, mode, 512).of(sizes_of(capture[key]))
        for mode, key in (("PIECEWISE", "piecewise"), ("FULL", "full"))
        if capture[key]
    ]
    collected = capture["collector"] * (capture["piecewise"] + capture["full"]) * COLLECTOR_S
    seconds = sum(cost.capture_us for cost in costs) / 1e6 + collected
    held = sum(cost.node_bytes for cost in costs) + max(cost.pool_bytes for cost in costs)
    return capture["seconds"] / seconds, (capture["gib"] or 0) * 2**30 / held


@pytest.mark.parametrize("capture", CAPTURES, ids=lambda capture: str(capture["id"]))
def test_each_published_start_up_lies_within_what_commands_print(capture: dict[str, Any]) -> None:
    took, held = shares(capture)
    assert TIME_WITHIN[0] < took < TIME_WITHIN[1]
    assert not held or MEMORY_WITHIN[0] < held < MEMORY_WITHIN[1]


def test_the_factor_is_the_same_whichever_source_is_left_out() -> None:
    newer = {c["id"]: math.log(shares(c)[0]) for c in CAPTURES if not c["collector"]}
    for left in newer:
        others = [log for name, log in newer.items() if name != left]
        assert abs(sum(others) / len(others)) < math.log(1.25)
