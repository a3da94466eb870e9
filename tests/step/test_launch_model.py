"""The closed forms against what was published. That they are right, lab 4's tests prove."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mini_engine.step.cards import load_spec
from mini_engine.step.launch_model import eager_itl_us, full_itl_us, graph_us, utilisation
from mini_engine.step.run import with_pdl

H200 = load_spec("h200")


def test_the_gpu_is_idle_most_of_an_eager_step_and_busy_in_a_graph() -> None:
    """310 kernels of 3.2 us: what one token of Qwen3-0.6B takes on an H200, about."""
    quick = replace(H200, host_step_us=0.0, ahead_us=0.0, copy_us=1e-9, sync_us=1e-9)
    eager, full = (f(310, 3.2, quick) for f in (eager_itl_us, full_itl_us))
    assert utilisation(310, 3.2, eager) < 0.11
    assert utilisation(310, 3.2, full) > 0.7
    assert eager == pytest.approx(310 * H200.cpu_op_us, rel=0.01)


@pytest.mark.parametrize(
    ("card", "measured_us", "within"), [("h200", 794.74, 0.09), ("h100", 979.51, 0.14)]
)
def test_the_published_graph_of_100_kernels(card: str, measured_us: float, within: float) -> None:
    """Llama-3.2-1B, one token, on the GPU alone: github.com/msaroufim/megakernels-vs-cuda-graphs,
    RESULTS.md, with PDL. Not exact: the floor of such kernels is fitted to many sources at once."""
    spec = with_pdl(load_spec(card, engine="custom-kernels"))
    moving_us = 2.4716e9 / (spec.product_gb_s * 1e3)
    predicted = graph_us(100, moving_us / 100 + spec.kernel_floor_us, spec)
    assert predicted == pytest.approx(measured_us, rel=within)
