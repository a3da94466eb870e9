"""What the graphs of a ladder cost: counted, timed and weighed."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, optimal_ladder
from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import LadderCosts
from mini_engine.step.hardware import load_spec

SHAPE, H200 = named_shape("qwen3-0.6b"), load_spec("h200")


def test_vllm_with_256_requests_and_28_layers_holds_51_times_29_pieces_and_35_graphs() -> None:
    cost = LadderCosts(SHAPE, H200, "FULL_AND_PIECEWISE", 256).of(default_capture_sizes(256, 8192))
    assert cost.piecewise_rungs == 51
    assert cost.piecewise_graphs == 51 * 29
    assert (cost.full_graphs, cost.graphs) == (35, 51 * 29 + 35)


def test_speculation_makes_full_graphs_of_whole_requests() -> None:
    costs = LadderCosts(SHAPE, H200, "FULL_DECODE_ONLY", 8, decode_query_len=3)
    dispatcher = GraphDispatcher("FULL_DECODE_ONLY", [4, 8, 24], 8, 3)
    assert costs.of([4, 8, 24]).full_graphs == len(dispatcher.descriptors()) == 3


def test_nodes_add_up_and_the_pool_is_shared() -> None:
    costs = LadderCosts(SHAPE, H200, "FULL", 64)
    few, many, top = costs.of([64]), costs.of([16, 32, 64]), costs.of([32])
    assert many.node_bytes == 3 * few.node_bytes
    assert many.pool_bytes == few.pool_bytes > top.pool_bytes


histograms = st.dictionaries(st.integers(1, 40), st.integers(1, 50), min_size=1, max_size=8)


@given(histogram=histograms, rungs=st.integers(1, 6))
def test_each_point_of_the_curve_is_the_best_ladder_of_its_rungs_with_its_own_costs(
    histogram: dict[int, int], rungs: int
) -> None:
    costs = LadderCosts(SHAPE, H200, "FULL", 64)
    points = costs.curve(histogram, rungs, 48)
    for point in points:
        assert point.ladder == optimal_ladder(histogram, len(point.ladder), top=48)
        assert point.ladder.top == 48
        assert point.waste == point.ladder.waste(histogram)
        assert point.capture_us == costs.of(point.ladder).capture_us
        assert point.memory_bytes == costs.of(point.ladder).memory_bytes
    padded = [point.waste.padded_rows for point in points]
    assert padded == sorted(padded, reverse=True)
    assert [p.capture_us for p in points] == sorted(p.capture_us for p in points)


def test_a_ladder_out_of_order_costs_the_same_and_a_rung_twice_is_refused() -> None:
    costs = LadderCosts(SHAPE, H200, "FULL", 64)
    assert costs.of([8, 2]) == costs.of(CaptureLadder([2, 8]))
    with pytest.raises(ValueError, match="appears twice"):
        costs.of([2, 2])
