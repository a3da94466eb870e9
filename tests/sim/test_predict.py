"""The simulated device and the step-cost model say the same, op for op and µs for µs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.model.config import ModelConfig, named_shape
from mini_engine.sim.device import Device
from mini_engine.sim.predict import play, predict
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.trace import CPU, GPU, busy_us
from mini_engine.step.cards import DeviceSpec, load_spec, names
from mini_engine.step.curves import capture_cost
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import MODES as LAUNCHED
from mini_engine.step.run import Mode, is_live, step_time

SPEC = replace(load_spec("h200"), ops="fused9")  # as the simulated engine launches it
LIMITS = SchedulerLimits(*SPEC.batch_defaults, num_blocks=4096, block_size=16, max_model_len=4096)
SHAPE = replace(named_shape("qwen3-0.6b"), num_layers=3)
MODES: dict[str, Mode] = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}

# Engines differ in what they do around a step: vLLM schedules the next one beside the GPU.
SPECS = [load_spec("h200", engine=name) for name in names("engine")]
# A queue of one launch: the CPU waits for each work, whatever it does beside the last one.
SPECS += [load_spec("laptop-cpu"), replace(SPEC, queue_depth=1, stream_gap_us=0.05)]
OPS = st.lists(
    st.builds(
        OpCost,
        name=st.sampled_from(["norm", "gemv", "attention"]),
        bytes=st.floats(0, 1e8),
        flops=st.floats(0, 1e10),
        splitting=st.booleans(),
        kind=st.sampled_from(["product", "attention", "other"]),
        by=st.sampled_from(["engine", "torch", "library"]),
    ),
    min_size=1,
    max_size=30,
)


def cost_only_runner(
    mode: str, shape: ModelConfig = SHAPE, sizes: Sequence[int] = (1, 8)
) -> SimRunner:
    dispatcher = GraphDispatcher(mode, sizes, LIMITS.max_num_seqs)
    device = Device(SPEC, compute=False, record=True)
    return SimRunner(device, shape, None, LIMITS, dispatcher)


@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen2.5-1.5b", "llama-3.2-1b"])
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 200)), min_size=1, max_size=5))
def test_the_models_launches_are_the_op_list_name_by_name_and_byte_by_byte(
    name: str, requests: list[tuple[int, int]]
) -> None:
    shape = replace(named_shape(name), num_layers=2)
    runner = cost_only_runner("NONE", shape)
    lens = [query for query, _ in requests]
    contexts = [query + before for query, before in requests]
    device, step = runner.device, runner.inputs.step(sum(lens), len(lens))
    device.copy_batch([(step.query_lens, lens), (step.context_lens, contexts)])  # type: ignore[list-item]
    with device.trace(pool=0) as nodes:
        hidden = runner.model.body(step)
        runner.model.head(hidden, step.last_rows)
    ours = [(node.label, node.bytes, node.flops) for node in nodes]
    ops = step_ops(shape, StepShape.mixed(lens, contexts), "fused9")
    assert ours == [(op.name, op.bytes, op.flops) for op in ops]
    splitting = {op.name for op in ops if op.splitting}
    assert splitting == {"attention", "select_rows", "lm_head", "argmax"}


def test_a_prediction_counts_what_the_step_launches() -> None:
    eager, pieces, full = (predict(SHAPE, SPEC, mode) for mode in MODES)
    assert (eager.work.kernels, eager.work.launches) == (1 + 27 + 1 + 3, 33)
    assert (full.work.kernels, full.work.launches) == (32, 2)
    assert (pieces.work.kernels, pieces.work.launches) == (32, 1 + 4 + 3 + 3)
    assert full.itl_us < pieces.itl_us < eager.itl_us
    assert all(0 < p.utilisation < 1 for p in (eager, pieces, full))


@given(st.sampled_from(list(MODES)), st.sampled_from([1, 3, 16, 60]), st.integers(2, 900))
def test_the_runner_takes_for_a_step_what_is_predicted(mode: str, batch: int, context: int) -> None:
    """Event for event, padded or not."""
    runner = cost_only_runner(mode, sizes=[1, 16, 64])
    runner.capture()
    blocks = (1,) * -(-context // LIMITS.block_size)
    states = (RequestState(Request(str(i), range(context), 1)) for i in range(batch))
    step = ScheduledBatch(
        tuple(
            ScheduledRequest(state, context - 1, 1, blocks, is_prefill=False, samples=True)
            for state in states
        )
    )
    before, began_us = len(runner.device.timeline), runner.device.cpu_us
    runner.execute(step, runner.dispatcher.dispatch(batch, batch, 1))
    ran = runner.device.timeline[before:]
    sizes = [1, 16, 64]
    predicted = predict(SHAPE, SPEC, mode, batch=batch, context=context, capture_sizes=sizes)
    told = [(e.lane, e.category) for e in predicted.timeline]
    assert [(e.lane, e.category) for e in ran] == told
    ends = [e.end_us for e in predicted.timeline]
    assert [e.end_us - began_us for e in ran] == pytest.approx(ends, rel=1e-9)


@pytest.mark.parametrize(("batch", "context"), [(0, 8), (1025, 8), (1, 0)])
def test_a_step_that_the_engine_cannot_hold_is_refused(batch: int, context: int) -> None:
    with pytest.raises(ValueError, match=r"batch|context"):
        predict(SHAPE, SPEC, "NONE", batch=batch, context=context)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
def test_capturing_takes_on_the_device_what_the_formula_says(mode: str) -> None:
    sizes = [1, 8, 64]
    runner = cost_only_runner(mode, sizes=sizes)
    device_us = {r.rung: r.time_us for r in runner.capture().rungs}
    for size in sizes:
        ops = step_ops(SHAPE, StepShape(size, size, 0, 0), "fused9")
        cost = capture_cost(ops, SPEC, MODES[mode])
        assert device_us[size] == pytest.approx(cost.total_us, rel=1e-9)


# ---------------------------------------------------------------- steps of mere figures


@given(OPS, st.sampled_from(LAUNCHED), st.sampled_from(SPECS), st.integers(1, 64))
def test_a_timeline_is_as_long_and_as_busy_as_the_step_cost_model_says(
    ops: list[OpCost], mode: Mode, spec: DeviceSpec, num_reqs: int
) -> None:
    events, _ = play(ops, spec, mode, num_reqs)
    cost = step_time(ops, spec, mode, num_reqs)
    # the same sums of floats in another order
    assert max(e.end_us for e in events) == pytest.approx(cost.itl_us, rel=1e-9)
    assert busy_us(events, GPU) == pytest.approx(cost.gpu_busy_us, rel=1e-9)
    assert busy_us(events, CPU) == pytest.approx(cost.cpu_us, rel=1e-9)
    assert min(e.start_us for e in events) == 0


@given(OPS)
def test_every_op_runs_once_by_its_name_whatever_the_mode(ops: list[OpCost]) -> None:
    for mode in LAUNCHED:
        ran = [e for e in play(ops, SPEC, mode)[0] if e.lane == GPU and e.category != "copy"]
        assert [e.name for e in ran] == [op.name for op in ops]
        live = [is_live(mode, op.splitting, op.by) for op in ops]
        assert [e.category == "kernel" for e in ran] == live
