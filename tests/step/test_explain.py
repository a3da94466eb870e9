"""Where the time of a step goes, and what a graph would save of it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.model.config import SHAPES, named_shape
from mini_engine.step.cards import load_spec, names
from mini_engine.step.explain import explain
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import WAYS
from mini_engine.step.step_model import StepModel

QWEN = named_shape("qwen3-0.6b")


@given(
    st.sampled_from(sorted(SHAPES)), st.sampled_from(names("card")), st.integers(1, 64),
    st.none() | st.floats(1e2, 1e6), st.none() | st.sampled_from(sorted(WAYS)),
)  # fmt: skip
def test_the_three_parts_are_the_whole_step_and_none_is_negative(
    shape: str, card: str, batch: int, itl_us: float | None, mode: str | None
) -> None:
    found = explain(StepModel(named_shape(shape), load_spec(card)), batch, 512, itl_us, mode)
    parts = (found.floor_us, found.kernels_us, found.cpu_us)
    assert sum(parts) == pytest.approx(found.itl_us)
    assert min(parts) >= -1e-6 * found.itl_us
    for way in found.ways.values():
        assert way.high_us is None or found.floor_us * 0.999 <= (way.low_us or 0) < way.high_us


def test_a_recorded_eager_step_tells_what_the_graph_was_recorded_to_take() -> None:
    """SGLang on an H100: 8.69 ms eager, 1.54 in a graph (YiconRain/profiling@311296ef)."""
    spec = load_spec("h100", engine="sglang")
    found = explain(StepModel(QWEN, spec), 1, 272, 8690, "NONE")
    assert found.launch_bound
    assert found.ways["FULL"].itl_us == pytest.approx(1540, rel=0.1)
    assert found.ways["FULL"].low_us < 1540 < found.ways["FULL"].high_us
    assert found.cpu_us == pytest.approx(8690 - 1540, rel=0.03)


@pytest.mark.parametrize("host", ["desktop-2025", "server-2024"])
def test_an_eager_step_tells_how_fast_its_host_is(host: str) -> None:
    """The step of another host, explained with ours, gives the ratio of their times."""
    usual, other = load_spec("h200"), load_spec("h200", host)
    itl_us = StepModel(QWEN, other).itl_us("eager", StepShape.decode(1, 512))
    found = explain(StepModel(QWEN, usual), 1, 512, itl_us, "NONE")
    assert found.host_factor == pytest.approx(other.cpu_op_us / usual.cpu_op_us, rel=0.05)
    assert found.ways["NONE"].itl_us == pytest.approx(itl_us)


def test_where_bytes_decide_no_host_is_told_and_no_graph_saves() -> None:
    found = explain(StepModel(named_shape("qwen3-8b"), load_spec("rtx4070")), 1, 512, 34_500)
    assert not found.launch_bound
    assert found.floor_us / found.itl_us > 0.9


@pytest.mark.parametrize("mode", WAYS)
def test_a_step_as_long_as_predicted_looks_like_the_way_that_was_predicted(mode: str) -> None:
    costs = StepModel(QWEN, load_spec("h200"))
    itl_us = costs.itl_us(WAYS[mode], StepShape.decode(1, 512))
    assert explain(costs, 1, 512, itl_us).mode == mode
