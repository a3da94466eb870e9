"""Lab 1: the arithmetic of launch overhead. What you write is held against a clock that ticks."""

from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from mini_engine.predict.hardware import DeviceSpec, load_spec
from mini_engine.predict.launch_model import (
    break_even_replays,
    crossover,
    eager_itl_us,
    full_itl_us,
    utilisation,
)

H200 = load_spec("h200")  # with vLLM, which schedules the next step while the GPU runs
OURS = load_spec("h200", engine="launch-bound")  # which schedules before the step
LAPTOP = load_spec("laptop-cpu")


def tick(issues_us: list[float], kernel_us: float, gap_us: float, spec: DeviceSpec) -> float:
    """A step played kernel by kernel: each is issued, waits for the one before it, and runs.

    The first work on the GPU is the copy of the inputs. When all is issued, the engine does what it
    does ahead; the step ends with a read-back, once both are done.
    """
    cpu = spec.host_step_us + spec.copy_us
    gpu_free = cpu + spec.kernel_floor_us + gap_us  # the copy has ended
    end = gpu_free
    for issue in issues_us:
        cpu += issue
        end = max(cpu, gpu_free) + kernel_us
        gpu_free = end + gap_us
    return max(end, cpu + spec.ahead_us) + spec.sync_us


def cases() -> list[tuple[int, float]]:
    rng = random.Random(1)
    many = [(rng.randint(2, 2000), round(rng.uniform(0.5, 60), 2)) for _ in range(40)]
    return [(1, 3.0), (257, 4.2), (1591, 1.6), *many]


@pytest.mark.catches("sum-of-lanes")
@pytest.mark.parametrize("spec", [H200, OURS, LAPTOP], ids=["h200", "ours", "laptop"])
def test_an_eager_step_takes_as_long_as_a_clock_that_plays_it(spec: DeviceSpec) -> None:
    for kernels, kernel_us in cases():
        played = tick([spec.cpu_op_us] * kernels, kernel_us, spec.stream_gap_us, spec)
        assert eager_itl_us(kernels, kernel_us, spec) == pytest.approx(played, rel=1e-9)


@pytest.mark.catches("graph-is-free", "graph-pays-per-node")
def test_a_graph_step_takes_its_kernels_and_the_gaps_between_nodes() -> None:
    for kernels, kernel_us in cases():
        launch = OURS.graph_launch_us + OURS.graph_node_ns * kernels / 1000
        start = max(launch, OURS.kernel_floor_us + OURS.stream_gap_us)
        around = OURS.host_step_us + OURS.copy_us + OURS.sync_us
        on_gpu = kernels * kernel_us + (kernels - 1) * OURS.graph_gap_us
        assert full_itl_us(kernels, kernel_us, OURS) == pytest.approx(around + start + on_gpu)


@pytest.mark.catches("ahead-is-a-sum")
def test_what_an_engine_does_ahead_costs_time_only_where_the_gpu_is_done_first() -> None:
    none = replace(H200, ahead_us=0.0)
    long, short = (1000, 4.2), (20, 4.2)  # kernels: they outlast the work beside them, or do not
    assert full_itl_us(*long, H200) == pytest.approx(full_itl_us(*long, none))
    launch = H200.graph_launch_us + H200.graph_node_ns * short[0] / 1000
    waited = H200.copy_us + launch + H200.ahead_us + H200.sync_us
    assert full_itl_us(*short, H200) == pytest.approx(waited)


@pytest.mark.catches("graph-pays-per-node")
def test_a_thousand_kernels_more_cost_the_cpu_of_a_graph_almost_nothing() -> None:
    few, many = full_itl_us(100, 2.0, OURS), full_itl_us(1100, 2.0, OURS)
    on_gpu = 1000 * (2.0 + OURS.graph_gap_us)
    assert many - few == pytest.approx(on_gpu, abs=0.01 * OURS.cpu_launch_us * 1000)


@pytest.mark.catches("graph-is-free")
def test_a_graph_of_long_kernels_saves_almost_nothing() -> None:
    eager, graph = eager_itl_us(300, 500.0, H200), full_itl_us(300, 500.0, H200)
    assert 0.99 * eager < graph < eager


@pytest.mark.catches("busy-means-waiting")
def test_utilisation_counts_kernels_and_nothing_else() -> None:
    assert utilisation(300, 2.0, 1200.0) == pytest.approx(0.5)
    eager = eager_itl_us(1591, 1.6, H200)
    assert utilisation(1591, 1.6, eager) == pytest.approx(1591 * 1.6 / eager)


@pytest.mark.catches("crossover-without-floor")
def test_at_the_crossover_launching_is_hidden_and_one_request_earlier_it_is_not() -> None:
    rng = random.Random(2)
    for _ in range(50):
        kernels, base = rng.randint(100, 2000), rng.uniform(50, 500)
        request = rng.uniform(0.5, 40)
        batch = crossover(kernels, base, request, H200)

        def hidden(b: int, n: int = kernels, w: float = base, r: float = request) -> bool:
            per_kernel = H200.kernel_floor_us + H200.stream_gap_us + (w + b * r) / n
            return per_kernel >= H200.cpu_op_us * (1 - 1e-12)

        assert hidden(batch)
        assert batch == 1 or not hidden(batch - 1)


def test_the_crossover_is_never_below_a_batch_of_one() -> None:
    assert crossover(10, 1e9, 1.0, H200) == 1


def test_a_graph_pays_after_its_cost_divided_by_what_a_replay_saves() -> None:
    assert break_even_replays(1000.0, 12.0, 2.0) == 100
    assert break_even_replays(1001.0, 12.0, 2.0) == 101


@pytest.mark.catches("graphs-always-pay")
def test_a_graph_that_saves_nothing_never_pays() -> None:
    assert break_even_replays(1000.0, 2.0, 2.0) == math.inf
    assert break_even_replays(1000.0, 2.0, 3.0) == math.inf
