"""A step of recorded ops on the simulated device: as long as the formulas say, and drawn right."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.predict.hardware import load_spec
from mini_engine.predict.oplists import OpCost
from mini_engine.predict.step_cost import MODES, Mode, step_time
from mini_engine.records.trace import CPU, GPU, busy_us
from mini_engine.sim.op_timeline import op_timeline

H200 = load_spec("h200")
OPS = st.lists(
    st.builds(
        OpCost,
        name=st.sampled_from(["norm", "gemv", "attention"]),
        bytes=st.floats(0, 1e8),
        flops=st.floats(0, 1e10),
        splitting=st.booleans(),
    ),
    min_size=1,
    max_size=30,
)


@given(OPS, st.sampled_from(MODES))
def test_a_timeline_is_as_long_and_as_busy_as_the_step_cost_model_says(
    ops: list[OpCost], mode: Mode
) -> None:
    events, cost = op_timeline(ops, H200, mode), step_time(ops, H200, mode)
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


def test_pieces_are_the_runs_between_splitting_ops() -> None:
    ops = [
        OpCost(name, 1, 1, name == "attention")
        for name in ["a", "b", "attention", "c", "attention"]
    ]
    calls = [e for e in op_timeline(ops, H200, "piecewise") if e.category in ("graph", "launch")]
    assert [e.name for e in calls] == [
        "launch piece 1 (2 nodes)", "attention", "launch piece 2 (1 nodes)", "attention",
    ]  # fmt: skip


def test_no_ops_and_an_unknown_mode_are_refused() -> None:
    with pytest.raises(ValueError, match="without ops"):
        op_timeline([], H200, "full")
    with pytest.raises(ValueError, match="'FULL': expected one of eager"):
        op_timeline([OpCost("a", 1, 1)], H200, "FULL")  # type: ignore[arg-type]
