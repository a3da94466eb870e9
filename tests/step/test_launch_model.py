"""The closed forms, against a clock that runs kernel by kernel, and against what was published."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.launch_model import (
    break_even_replays,
    crossover,
    eager_itl_us,
    full_itl_us,
    graph_us,
    utilisation,
)

H200 = load_spec("h200")

times = st.floats(0.01, 50.0)
specs = st.builds(
    lambda **figures: replace(H200, **figures),
    cpu_op_us=times,
    live_op_us=times,
    stream_gap_us=times,
    graph_gap_us=times,
    kernel_floor_us=times,
    graph_launch_us=times,
    graph_node_ns=times,
    copy_us=times,
    sync_us=times,
    host_step_us=st.floats(0.0, 2000.0),
    ahead_us=st.floats(0.0, 2000.0),
)


def clock(works: list[tuple[float, float]], spec: DeviceSpec) -> float:
    """ITL of a step, counted out: (CPU time to issue, GPU time) of each work after the copy."""
    cpu, end = spec.host_step_us, -math.inf  # before the step
    for issue_us, gpu_us in [(spec.copy_us, spec.kernel_floor_us), *works]:
        cpu += issue_us
        end = max(cpu, end + spec.stream_gap_us) + gpu_us
    return max(end, cpu + spec.ahead_us) + spec.sync_us  # ahead_us: beside the GPU


def graph(nodes: int, kernel_us: float, spec: DeviceSpec) -> tuple[float, float]:
    """(CPU time to launch, GPU time) of a graph of equal kernels."""
    launch_us = spec.graph_launch_us + spec.graph_node_ns * nodes / 1000
    return launch_us, nodes * kernel_us + (nodes - 1) * spec.graph_gap_us


# 1e-9: the same additions in another order.


@given(specs, st.integers(1, 300), times)
def test_eager_is_the_later_of_two_chains(spec: DeviceSpec, kernels: int, us: float) -> None:
    counted = clock([(spec.cpu_op_us, us)] * kernels, spec)
    assert eager_itl_us(kernels, us, spec) == pytest.approx(counted, rel=1e-9)


@given(specs, st.integers(1, 300), times)
def test_full_is_one_launch(spec: DeviceSpec, kernels: int, us: float) -> None:
    counted = clock([graph(kernels, us, spec)], spec)
    assert full_itl_us(kernels, us, spec) == pytest.approx(counted, rel=1e-9)


def test_the_gpu_is_idle_most_of_an_eager_step_and_busy_in_a_graph() -> None:
    """257 kernels of 4.1 us: what one token of Qwen3-0.6B takes on an H200, about."""
    quick = replace(H200, host_step_us=0.0, ahead_us=0.0, copy_us=1e-9, sync_us=1e-9)
    eager, full = (f(257, 4.1, quick) for f in (eager_itl_us, full_itl_us))
    assert utilisation(257, 4.1, eager) < 0.11
    assert utilisation(257, 4.1, full) > 0.7
    assert eager == pytest.approx(257 * H200.cpu_op_us, rel=0.01)


@pytest.mark.parametrize(
    ("card", "measured_us", "within"), [("h200", 794.74, 0.09), ("h100", 979.51, 0.14)]
)
def test_the_published_graph_of_100_kernels(card: str, measured_us: float, within: float) -> None:
    """Llama-3.2-1B, one token, on the GPU alone: github.com/msaroufim/megakernels-vs-cuda-graphs,
    RESULTS.md. Not exact: the floor of hand-written kernels is fitted to many sources at once."""
    spec = load_spec(card, engine="custom-kernels")
    moving_us = 2.4716e9 / (spec.product_gb_s * 1e3)
    predicted = graph_us(100, moving_us / 100 + spec.kernel_floor_us, spec)
    assert predicted == pytest.approx(measured_us, rel=within)


@given(specs, st.integers(1, 300), st.floats(0.0, 5000.0), st.floats(0.01, 100.0))
def test_crossover_is_the_first_batch_whose_kernels_outlast_their_launches(
    spec: DeviceSpec, kernels: int, base_us: float, request_us: float
) -> None:
    def slack_us(batch: int) -> float:
        gpu_us = base_us + batch * request_us
        gpu_us += kernels * (spec.kernel_floor_us + spec.stream_gap_us)
        return gpu_us - kernels * spec.cpu_op_us

    batch = crossover(kernels, base_us, request_us, spec)
    assume(min(abs(slack_us(batch)), abs(slack_us(batch - 1))) > 1e-6)  # not on a rounding edge
    assert slack_us(batch) > 0
    assert batch == 1 or slack_us(batch - 1) < 0


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e4), st.floats(1.0, 1e4))
def test_break_even_is_the_first_replay_that_leaves_one_better_off(
    capture_us: float, eager_us: float, graph_us: float
) -> None:
    replays = break_even_replays(capture_us, eager_us, graph_us)
    if eager_us <= graph_us:
        assert replays == math.inf
    else:
        saved_us = eager_us - graph_us
        assert replays * saved_us >= capture_us * (1 - 1e-12)
        assert (replays - 1) * saved_us < capture_us


@pytest.mark.parametrize("f", [eager_itl_us, full_itl_us])
@pytest.mark.parametrize(("kernels", "us"), [(0, 1.0), (3, 0.0), (3, -1.0)])
def test_no_kernels_and_no_time_are_refused(f: object, kernels: int, us: float) -> None:
    with pytest.raises(ValueError, match=f"{kernels} kernels of {us} us"):
        f(kernels, us, H200)  # type: ignore[operator]
