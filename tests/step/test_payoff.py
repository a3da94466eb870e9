"""Whether a graph pays: capture cost, break-even, crossover."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec, spec_names
from mini_engine.step.curves import (
    break_even,
    capture_cost,
    crossover_batch,
    crossover_closed_form,
    gain_below,
)
from mini_engine.step.kernels import STYLES, StepShape, step_ops
from mini_engine.step.run import Mode, StepModel, step_time

H200 = load_spec("h200")
QWEN = named_shape("qwen3-0.6b")
ONE = step_ops(QWEN, StepShape.decode(1, 1024), "fused9")

shapes = st.sampled_from(["qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b"]).map(named_shape)
devices = st.sampled_from(spec_names()).map(load_spec)
contexts = st.integers(1, 20_000)


# ---- capture


def test_a_full_graph_is_warmed_up_recorded_and_instantiated_node_by_node() -> None:
    cost = capture_cost(ONE, H200, "full")
    assert (cost.graphs, cost.nodes) == (1, 257)
    bare = replace(H200, host_step_us=0.0, ahead_us=0.0)  # nothing is scheduled for a warm-up
    assert cost.warmup_us == pytest.approx(step_time(ONE, bare, "eager", 0).itl_us)
    assert cost.capture_us == pytest.approx(257 * (H200.cpu_op_us + H200.capture_node_us))
    assert cost.instantiate_us == pytest.approx(257 * H200.instantiate_node_us)
    assert cost.node_bytes == 257 * H200.graph_node_bytes
    assert cost.total_us == cost.warmup_us + cost.capture_us + cost.instantiate_us


def test_piecewise_records_what_lies_between_the_splitting_ops() -> None:
    cost = capture_cost(ONE, H200, "piecewise")
    attention, tail = 28, 3
    assert (cost.graphs, cost.nodes) == (29, 257 - attention - tail)
    each_us = H200.cpu_op_us + H200.capture_node_us
    assert cost.capture_us == pytest.approx(cost.nodes * each_us)


def test_eager_has_nothing_to_capture() -> None:
    cost = capture_cost(ONE, H200, "eager")
    assert (cost.total_us, cost.graphs, cost.nodes, cost.node_bytes) == (0.0, 0, 0, 0)
    assert break_even(ONE, H200, "eager") == math.inf  # and nothing to save


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_break_even_is_where_all_steps_together_are_as_long(mode: Mode) -> None:
    replays = break_even(ONE, H200, mode)
    eager, graph = (step_time(ONE, H200, m).itl_us for m in ("eager", mode))
    spent = capture_cost(ONE, H200, mode).total_us
    assert spent + replays * graph <= replays * eager
    assert spent + (replays - 1) * graph > (replays - 1) * eager


# ---- crossover


@given(shapes, devices, st.sampled_from(STYLES), contexts)
def test_eager_is_launch_bound_up_to_the_crossover_and_never_again(
    config: ModelConfig, spec: DeviceSpec, style: str, context: int
) -> None:
    batch = crossover_batch(config, spec, style, context)

    def bound(b: int) -> bool:
        return StepModel(config, spec, style).launch_bound(StepShape.decode(b, context))

    assert not bound(batch)
    assert not bound(batch + 1)
    assert not bound(2 * batch)
    if batch > 1:
        assert bound(batch - 1)
        assert bound(1)


@given(shapes, devices, st.sampled_from(STYLES), contexts)
def test_two_numbers_give_the_crossover_unless_arithmetic_comes_first(
    config: ModelConfig, spec: DeviceSpec, style: str, context: int
) -> None:
    model = crossover_batch(config, spec, style, context)
    closed = crossover_closed_form(config, spec, style, context)
    assert model <= closed
    no_arithmetic = replace(spec, product_tflops=1e9)
    assert crossover_batch(config, no_arithmetic, style, context) == closed


def test_on_an_h200_one_token_of_qwen3_0_6b_is_launch_bound_and_fusing_ends_that() -> None:
    hf56, nine, five = (crossover_batch(QWEN, H200, s, 1024) for s in STYLES)
    assert hf56 > nine > five
    assert nine > 1


def test_longer_contexts_and_slower_cards_end_it_sooner() -> None:
    batches = [crossover_batch(QWEN, H200, "fused9", c) for c in (64, 1024, 16_384)]
    assert batches == sorted(batches, reverse=True)
    assert batches[0] > batches[-1]
    assert crossover_batch(QWEN, load_spec("l4"), "fused9", 1024) < batches[1] / 20


# ---- gain


@given(shapes, devices, contexts, st.floats(0.01, 0.5))
def test_gain_below_is_the_first_batch_with_so_little_to_win(
    config: ModelConfig, spec: DeviceSpec, context: int, fraction: float
) -> None:
    batch = gain_below(config, spec, "fused9", context, fraction)
    costs = StepModel(config, spec, "fused9")

    def saved(b: int) -> float:
        shape = StepShape.decode(b, context)
        return 1 - costs.itl_us("full", shape) / costs.itl_us("eager", shape)

    assert saved(batch) < fraction
    assert saved(2 * batch) < fraction
    if batch > 1:
        assert saved(batch - 1) >= fraction


@pytest.mark.parametrize("fraction", [0.0, 1.0, -0.5, 2.0])
def test_a_gain_is_a_fraction(fraction: float) -> None:
    with pytest.raises(ValueError, match="expected more than 0 and less than 1"):
        gain_below(QWEN, H200, "fused9", 1024, fraction)
