"""A graph whose nodes overlap: what PDL takes off a boundary, where, and where it ends."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_sheet, load_spec, spec_names
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time, with_pdl
from tests.support.sim_helpers import round_spec

H200 = load_spec("h200", engine="launch-bound")
OPS = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused5")
SINCE_SM_90 = {"b200", "gh200", "h100", "h100-nvl", "h100-pcie", "h20", "h200"}
SINCE_SM_90 |= {"b300", "gb200", "rtx5070ti", "rtx5080", "rtx5090", "rtxpro6000"}


@pytest.mark.parametrize("name", spec_names())
def test_cards_since_sm_90_have_pdl_and_older_ones_say_which_they_are(name: str) -> None:
    figure = load_sheet("card", name).figures["pdl_saves_us"]
    if name in SINCE_SM_90:
        assert figure.value == 0.96
        assert "pegainfer/issues/569" in figure.source
        assert figure.kind == ("quoted" if name.startswith("h100") else "borrowed")
    else:
        assert figure.value == 0
        assert name == "laptop-cpu" or "compute capability 9.0" in figure.source


def test_each_boundary_between_two_nodes_is_shorter_and_the_rest_of_the_step_is_not() -> None:
    before, after = (step_time(OPS, spec, "full") for spec in (H200, with_pdl(H200)))
    assert before.itl_us - after.itl_us == pytest.approx(142 * 0.96)
    assert before.gpu_busy_us == pytest.approx(after.gpu_busy_us)  # every byte is still moved
    assert before.cpu_us == after.cpu_us
    assert step_time(OPS, with_pdl(H200), "eager") == step_time(OPS, H200, "eager")


def test_a_card_without_pdl_takes_as_long_with_it() -> None:
    a100 = load_spec("a100", engine="launch-bound")
    assert with_pdl(a100) == a100


@pytest.mark.parametrize(
    ("saves", "gap", "floor"), [(0.4, 0.6, 0.5), (1.0, 0.0, 0.5), (1.2, 0.0, 0.3), (9.0, 0.0, 0.0)]
)
def test_the_gap_goes_first_then_the_floor_and_neither_below_zero(
    saves: float, gap: float, floor: float
) -> None:
    found = with_pdl(replace(round_spec(), pdl_saves_us=saves))  # gap 1.0, floor 0.5
    assert (found.graph_gap_us, found.kernel_floor_us) == pytest.approx((gap, floor))
    assert found.stream_gap_us == round_spec().stream_gap_us
