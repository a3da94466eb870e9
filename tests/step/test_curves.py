"""The data behind the crossover figure: the rooms' own numbers, at the rungs that would run."""

from __future__ import annotations

from dataclasses import astuple, replace
from functools import reduce

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.step.cards import DeviceSpec, load_spec, names
from mini_engine.step.curves import capture_cost, crossover_batch, itl_curve, step_floor_us
from mini_engine.step.kernels import STYLES, StepShape, step_ops
from mini_engine.step.launch_model import break_even_replays
from mini_engine.step.run import MODES, Mode, Run, launched, step_time
from mini_engine.step.step_model import StepModel

SHAPE, H200 = named_shape("qwen3-0.6b"), load_spec("h200")
FIVE = replace(H200, ops="fused5")
LADDER = CaptureLadder(default_capture_sizes(64, 8192))

ladders = st.sets(st.integers(1, 40), min_size=1, max_size=6).map(
    lambda sizes: CaptureLadder(sorted(sizes))
)


@pytest.mark.parametrize("style", STYLES)
def test_at_a_rung_every_number_is_that_of_the_step_itself(style: str) -> None:
    curve = itl_curve(SHAPE, replace(H200, ops=style), LADDER, context=700, max_batch=16)
    for batch in (1, 2, 4, 8, 16):
        ops = step_ops(SHAPE, StepShape.decode(batch, 700), style)
        point = curve.point(batch)
        assert point.rung == batch
        for mode, step in zip(MODES, (point.eager, point.piecewise, point.full), strict=True):
            assert astuple(step) == pytest.approx(astuple(step_time(ops, H200, mode, batch)))


@given(ladder=ladders, batch=st.integers(1, 44), context=st.integers(1, 5000))
def test_between_rungs_graphs_run_the_rung_with_the_keys_of_the_batch(
    ladder: CaptureLadder, batch: int, context: int
) -> None:
    tiny = replace(SHAPE, num_layers=2)
    curve = itl_curve(tiny, H200, ladder, context=context, max_batch=batch)
    point, model, keys = curve.point(batch), StepModel(tiny, H200), batch * context
    assert point.eager.itl_us == pytest.approx(
        model.itl_us("eager", StepShape.decode(batch, context))
    )
    rung = ladder.rung(batch)
    assert point.rung == rung
    if rung is None:
        assert point.piecewise == point.full == point.eager
        assert (point.speedup, point.saved) == (1.0, 0.0)
    else:  # the head stands in the full graph and outside the pieces
        pieces = StepShape(rung, batch, keys, keys)
        whole = StepShape(rung, rung, keys, keys, batch)
        assert point.piecewise.itl_us == pytest.approx(model.itl_us("piecewise", pieces))
        assert point.full.itl_us == pytest.approx(model.itl_us("full", whole))


def test_the_rungs_are_those_that_the_dispatcher_chooses_for_decode() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", LADDER, max_num_seqs=64)
    curve = itl_curve(SHAPE, FIVE, LADDER, context=64, max_batch=64)
    for point in curve.points:
        chosen = dispatcher.dispatch(point.batch, point.batch, 1)
        assert (chosen.mode.name, chosen.num_tokens) == ("FULL", point.rung)


@given(
    spec=st.sampled_from(["h200", "a100", "l4", "rtx4070"]),
    shape=st.sampled_from(["qwen3-0.6b", "qwen3-8b", "qwen2.5-0.5b", "llama-3.2-1b"]),
    style=st.sampled_from(list(STYLES)),
    batch=st.integers(1, 300),
    context=st.integers(1, 40_000),
)
def test_no_step_beats_the_floor(
    spec: str, shape: str, style: str, batch: int, context: int
) -> None:
    config, device = named_shape(shape), load_spec(spec)
    ops = step_ops(config, StepShape.decode(batch, context), style)
    step = step_time(ops, device, "full")
    floor_us = step_floor_us(config, device, batch, context)
    assert 0 < floor_us < step.gpu_busy_us < step.itl_us


def test_the_crossover_of_the_curve_has_a_point() -> None:
    spec = replace(H200, request_us=0.0)  # which the CPU needs for each request, launched or not
    curve = itl_curve(SHAPE, spec, LADDER, context=1024, max_batch=512)
    assert curve.crossover == crossover_batch(SHAPE, spec, 1024)
    # Left of it the CPU sets the pace: eager's ITL does not depend on the batch, up to the part
    # of the last kernels that the CPU cannot hide. Right of it ITL grows.
    eager = {p.batch: p.eager.itl_us for p in curve.points}
    assert eager[64] == pytest.approx(eager[1], rel=1e-3)
    assert eager[512] > 1.5 * eager[273]


@given(ladder=ladders, max_batch=st.integers(1, 3000))
def test_the_curve_rises_from_one_to_the_last_batch_past_both_sides_of_every_corner(
    ladder: CaptureLadder, max_batch: int
) -> None:
    tiny = replace(SHAPE, num_layers=1)
    curve = itl_curve(tiny, FIVE, ladder, context=9, max_batch=max_batch)
    batches = [point.batch for point in curve.points]
    assert batches == sorted(set(batches))
    assert (batches[0], batches[-1]) == (1, max_batch)
    corners = {c for r in (*ladder, curve.crossover) for c in (r, r + 1) if c <= max_batch}
    assert corners <= set(batches)
    if max_batch <= 512:
        assert batches == list(range(1, max_batch + 1))
    else:
        assert len(batches) <= 600


ONE = step_ops(SHAPE, StepShape.decode(1, 1024), "fused9")

shapes = st.sampled_from(["qwen3-0.6b", "qwen2.5-0.5b", "llama-3.2-1b"]).map(named_shape)
devices = st.sampled_from(names("card")).map(load_spec)
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


@pytest.mark.parametrize("mode", ["piecewise", "full"])
def test_a_capture_has_paid_where_all_steps_together_are_as_long(mode: Mode) -> None:
    eager, graph = (step_time(ONE, H200, m).itl_us for m in ("eager", mode))
    spent = capture_cost(ONE, H200, mode).total_us
    replays = break_even_replays(spent, eager, graph)
    assert spent + replays * graph <= replays * eager
    assert spent + (replays - 1) * graph > (replays - 1) * eager


# ---- crossover


@given(shapes, devices, st.sampled_from(list(STYLES)), contexts)
def test_eager_is_launch_bound_up_to_the_crossover_and_never_again(
    config: ModelConfig, spec: DeviceSpec, style: str, context: int
) -> None:
    crossover = crossover_batch(config, replace(spec, ops=style), context)

    def bound(batch: int) -> bool:
        ops = step_ops(config, StepShape.decode(batch, context), style)
        run = reduce(Run.then, (work.alone(spec) for work in launched(ops, spec, "eager")))
        return run.issue > run.gpu

    spec = replace(spec, queue_depth=1024)
    assert not any(map(bound, (crossover, crossover + 1, 2 * crossover)))
    assert crossover == 1 or (bound(crossover - 1) and bound(1))


@pytest.mark.parametrize(
    ("engine", "launched", "live"),  # of Qwen3-0.6B: what a step launches, and what no graph holds
    [("vllm", 373, 7), ("vllm-2025", 457, 7), ("sglang", 384, 16), ("nano-vllm", 397, 3),
     ("launch-bound", 143, 0)],
)  # fmt: skip
def test_a_full_capture_records_what_the_named_engine_launches(
    engine: str, launched: int, live: int
) -> None:
    spec = load_spec("h200", engine=engine)
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), spec.ops)
    assert (len(ops), capture_cost(ops, spec, "full").nodes) == (launched, launched - live)
