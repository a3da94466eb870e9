"""The simulated device and the step-cost model say the same, op for op and µs for µs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine
from mini_engine.model.config import named_shape
from mini_engine.sim.device import Device
from mini_engine.sim.predict import HF_EAGER, LIMITS, Service, predict
from mini_engine.sim.runner import SimRunner
from mini_engine.step.cards import load_spec
from mini_engine.step.curves import capture_cost
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import break_even_replays
from mini_engine.step.run import Mode, step_time
from mini_engine.step.storage import stored_as

SPEC = load_spec("h200")
SHAPE = replace(named_shape("qwen3-0.6b"), num_layers=3)
MODES: dict[str, Mode] = {"NONE": "eager", "PIECEWISE": "piecewise", "FULL": "full"}


def cost_only_engine(
    mode: str,
    shape: object = SHAPE,
    sizes: Sequence[int] = (1, 2, 4, 8, 16),
    kv_dtype: str = "auto",
) -> tuple[Engine, SimRunner]:
    dispatcher = GraphDispatcher(mode, sizes, LIMITS.max_num_seqs)
    device = Device(SPEC, compute=False)
    runner = SimRunner(device, shape, None, LIMITS, dispatcher, kv_dtype=kv_dtype)  # type: ignore[arg-type]
    runner.capture()
    return Engine(runner, LIMITS, dispatcher), runner


@given(st.sampled_from(list(MODES)), st.integers(1, 16), st.integers(2, 900))
def test_a_decode_step_takes_on_the_device_what_the_model_says(
    mode: str, batch: int, context: int
) -> None:
    # on a rung, so that nothing is padded: the model is asked for exactly this step
    batch = {1: 1, 2: 2, 3: 4, 4: 8, 5: 16}[batch.bit_length()]
    engine, _ = cost_only_engine(mode)
    for i in range(batch):
        engine.submit(Request(str(i), range(context - 1), batch + 2))  # all alive at the end
    record = None
    while record is None or record.batch.has_prefill or record.batch.num_reqs < batch:
        record = engine.step()
        assert record
    took = record.ended_us - record.began_us
    ops = step_ops(SHAPE, StepShape.mixed([1] * batch, record.batch.context_lens), "fused9")
    # the same sums of floats in another order
    assert took == pytest.approx(step_time(ops, SPEC, MODES[mode], batch).itl_us, rel=1e-9)


@pytest.mark.parametrize("kv_dtype", [None, "fp8"])
@pytest.mark.parametrize("name", ["qwen3-0.6b", "qwen2.5-1.5b", "llama-3.2-1b"])
@given(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 200)), min_size=1, max_size=5))
def test_the_models_launches_are_the_op_list_name_by_name_and_byte_by_byte(
    name: str, kv_dtype: str | None, requests: list[tuple[int, int]]
) -> None:
    shape = replace(named_shape(name), num_layers=2)
    _, runner = cost_only_engine("NONE", shape, kv_dtype=kv_dtype or "auto")
    lens = [query for query, _ in requests]
    contexts = [query + before for query, before in requests]
    device, step = runner.device, runner.inputs.step(sum(lens), len(lens))
    device.copy_batch([(step.query_lens, lens), (step.context_lens, contexts)])  # type: ignore[list-item]
    with device.trace(pool=0) as nodes:
        hidden = runner.model.body(step)
        runner.model.head(hidden, step.last_rows)
    ours = [(node.label, node.bytes, node.flops) for node in nodes]
    stored = stored_as(shape, kv_dtype=kv_dtype)
    ops = step_ops(shape, StepShape.mixed(lens, contexts), "fused9", stored)
    assert ours == [(op.name, op.bytes, op.flops) for op in ops]
    splitting = {op.name for op in ops if op.splitting}
    assert splitting == {"attention", "select_rows", "lm_head", "argmax"}


def test_a_prediction_counts_what_the_step_launches() -> None:
    eager, pieces, full = (predict(SHAPE, SPEC, mode) for mode in MODES)
    assert (eager.kernels, eager.launches, eager.graphs) == (1 + 27 + 1 + 3, 33, 0)
    assert (full.kernels, full.launches) == (32, 2)
    assert (pieces.kernels, pieces.launches) == (32, 1 + 4 + 3 + 3)
    assert full.itl_us < pieces.itl_us < eager.itl_us
    assert eager.graph_bytes == eager.capture_us == 0
    assert full.break_even(eager) == break_even_replays(full.capture_us, eager.itl_us, full.itl_us)
    assert eager.break_even(eager) == float("inf")
    for prediction in (eager, pieces, full):
        assert prediction.itl_p50_us <= prediction.itl_p99_us
        assert 0 < prediction.utilisation < 1
        assert prediction.timeline[0].start_us == 0
        ends = max(e.end_us for e in prediction.timeline)
        assert ends == pytest.approx(prediction.itl_us)


@given(
    st.sampled_from(list(MODES)), st.sampled_from([1, 2, 4, 8, 16, 64, 256]), st.integers(2, 900)
)
def test_a_predicted_step_is_the_models_at_any_batch(mode: str, batch: int, context: int) -> None:
    service = Service(requests=1, new_tokens=2)
    sizes = [1, 2, 4, 8, 16, 64, 256]
    prediction = predict(
        SHAPE, SPEC, mode, batch=batch, context=context, service=service, capture_sizes=sizes
    )
    ops = step_ops(SHAPE, StepShape.decode(batch, context), "fused9")
    model = step_time(ops, SPEC, MODES[mode], batch)
    assert prediction.itl_us == pytest.approx(model.itl_us, rel=1e-9)
    assert prediction.gpu_us - SPEC.kernel_floor_us == pytest.approx(
        model.gpu_busy_us - SPEC.kernel_floor_us, rel=1e-9
    )
    assert prediction.cpu_us == pytest.approx(model.cpu_us, rel=1e-9)


@pytest.mark.parametrize(("batch", "context"), [(0, 8), (257, 8), (1, 1), (1, 5000)])
def test_a_step_that_the_engine_cannot_hold_is_refused(batch: int, context: int) -> None:
    with pytest.raises(ValueError, match=r"batch|context"):
        predict(SHAPE, SPEC, "NONE", batch=batch, context=context)


@pytest.mark.parametrize("mode", ["PIECEWISE", "FULL"])
def test_capturing_takes_on_the_device_what_the_formula_says(mode: str) -> None:
    sizes = [1, 8, 64]
    _, runner = cost_only_engine(mode, sizes=sizes)
    device_us = {r.rung: r.time_us for r in runner.capture().rungs}
    for size in sizes:
        ops = step_ops(SHAPE, StepShape(size, size, 0, 0), "fused9")
        cost = capture_cost(ops, SPEC, MODES[mode])
        assert device_us[size] == pytest.approx(cost.total_us, rel=1e-9)


def test_hugging_face_eager_launches_its_own_op_list() -> None:
    shape = named_shape("qwen3-0.6b")
    service = Service(requests=1, new_tokens=2)
    prediction = predict(shape, SPEC, HF_EAGER, service=service)
    assert prediction.kernels == 1591
    ops = step_ops(shape, StepShape.decode(1, 512), "hf56")
    model = step_time(ops, SPEC, "eager")
    assert prediction.itl_us == pytest.approx(model.itl_us, rel=1e-9)
