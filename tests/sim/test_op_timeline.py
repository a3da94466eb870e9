"""A step of recorded ops on the simulated device: as long as the formulas say, and drawn right."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.sim.op_timeline import op_timeline
from mini_engine.sim.trace import CPU, GPU, busy_us
from mini_engine.step.cards import DeviceSpec, load_spec, names
from mini_engine.step.kernels import OpCost
from mini_engine.step.run import MODES, Mode, step_time

# Engines differ in what they do around a step: vLLM schedules the next one beside the GPU.
H200 = load_spec("h200")
SPECS = [load_spec("h200", engine=name) for name in names("engine")]
# A queue of one launch: the CPU waits for each work, whatever it does beside the last one.
SPECS += [load_spec("laptop-cpu"), replace(H200, queue_depth=1, stream_gap_us=0.05)]
OPS = st.lists(
    st.builds(
        OpCost,
        name=st.sampled_from(["norm", "gemv", "attention"]),
        bytes=st.floats(0, 1e8),
        flops=st.floats(0, 1e10),
        splitting=st.booleans(),
        kind=st.sampled_from(["product", "attention", "other"]),
    ),
    min_size=1,
    max_size=30,
)


@given(OPS, st.sampled_from(MODES), st.sampled_from(SPECS), st.integers(1, 64))
def test_a_timeline_is_as_long_and_as_busy_as_the_step_cost_model_says(
    ops: list[OpCost], mode: Mode, spec: DeviceSpec, num_reqs: int
) -> None:
    events = op_timeline(ops, spec, mode, num_reqs)
    cost = step_time(ops, spec, mode, num_reqs)
    # the same sums of floats in another order
    assert max(e.end_us for e in events) == pytest.approx(cost.itl_us, rel=1e-9)
    assert busy_us(events, GPU) == pytest.approx(cost.gpu_busy_us, rel=1e-9)
    assert busy_us(events, CPU) == pytest.approx(cost.cpu_us, rel=1e-9)
    assert min(e.start_us for e in events) == 0


@given(OPS)
def test_every_op_runs_once_by_its_name_whatever_the_mode(ops: list[OpCost]) -> None:
    for mode in MODES:
        ran = [e for e in op_timeline(ops, H200, mode) if e.lane == GPU and e.category != "copy"]
        assert [e.name for e in ran] == [op.name for op in ops]
        live = [True] * len(ops) if mode == "eager" else [op.splitting for op in ops]
        if mode == "full":
            live = [False] * len(ops)
        assert [e.category == "kernel" for e in ran] == live


def test_an_engine_that_schedules_ahead_hides_its_work_behind_the_gpu() -> None:
    ops = [OpCost("product", 4.26e9, 1.0, kind="product")]  # a millisecond and more
    ahead = replace(H200, host_step_us=0.0, ahead_us=400.0, request_us=0.0)
    waits = replace(ahead, host_step_us=400.0, ahead_us=0.0)
    hidden, waited = (step_time(ops, spec, "full").itl_us for spec in (ahead, waits))
    assert waited - hidden == pytest.approx(400.0)
    events = op_timeline(ops, ahead, "full")
    (beside,) = (e for e in events if e.name == "schedule the next step")
    (kernel,) = (e for e in events if e.category == "node")
    assert kernel.start_us < beside.end_us < kernel.end_us
