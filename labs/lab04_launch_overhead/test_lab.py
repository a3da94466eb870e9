"""Lab 4: the arithmetic of launch overhead. What you write is held against a clock that ticks."""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from dataclasses import replace

import pytest

from mini_engine.step.cards import DeviceSpec, load_spec
from mini_engine.step.launch_model import (
    break_even_replays,
    crossover,
    eager_itl_us,
    full_itl_us,
    utilisation,
)

H200 = load_spec("h200")  # with vLLM, which schedules the next step while the GPU runs
OURS = load_spec("h200", engine="launch-bound")  # which schedules before the step
LAPTOP = load_spec("laptop-cpu")
QUICK = replace(OURS, cpu_op_us=0.7, cpu_launch_us=0.7)  # issues before the copy has ended
SPECS = {"h200": H200, "ours": OURS, "laptop": LAPTOP, "quick": QUICK}
each_spec = pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
NOT_A_STEP = [(0, 3.0), (-2, 3.0), (5, 0.0), (5, -1.0)]  # kernels, and how long each of them is


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
    return [(1, 3.0), (257, 4.2), (1591, 1.6), (12, 0.25), *many]


# ---------------------------------------------------------------- launched one by one


@pytest.mark.catches(
    "the-earlier-chain", "sum-of-lanes", "chains-in-a-row", "ends-with-the-last-launch"
)
def test_a_step_of_short_kernels_waits_for_the_cpu_and_one_of_long_kernels_for_the_gpu() -> None:
    spec = OURS
    for kernels, kernel_us in ((257, 2.0), (257, 90.0)):
        played = tick([spec.cpu_op_us] * kernels, kernel_us, spec.stream_gap_us, spec)
        assert eager_itl_us(kernels, kernel_us, spec) == pytest.approx(played)


@pytest.mark.catches("copy-is-free")
def test_the_first_kernel_waits_for_the_copy_of_the_inputs_too() -> None:
    spec = QUICK  # 0.7 us a launch: all is issued long before the copy has ended
    for kernels, kernel_us in ((1, 4.0), (2, 30.0), (50, 4.2)):
        played = tick([spec.cpu_op_us] * kernels, kernel_us, spec.stream_gap_us, spec)
        assert eager_itl_us(kernels, kernel_us, spec) == pytest.approx(played)


@each_spec
@pytest.mark.catches("a-gap-for-each-kernel", "kernels-touch")
def test_an_eager_step_takes_as_long_as_a_clock_that_plays_it(spec: DeviceSpec) -> None:
    for kernels, kernel_us in cases():
        played = tick([spec.cpu_op_us] * kernels, kernel_us, spec.stream_gap_us, spec)
        assert eager_itl_us(kernels, kernel_us, spec) == pytest.approx(played, rel=1e-9)


def test_no_kernels_or_kernels_of_no_length_are_not_an_eager_step() -> None:
    for kernels, kernel_us in NOT_A_STEP:
        with pytest.raises(ValueError):
            refused = eager_itl_us(kernels, kernel_us, OURS)
            pytest.fail(f"{kernels} kernels of {kernel_us} us took {refused} us, not a ValueError")


# ---------------------------------------------------------------- as one graph


@pytest.mark.catches("graph-is-free", "graph-pays-per-node")
def test_a_graph_step_takes_its_kernels_and_the_gaps_between_nodes() -> None:
    for kernels, kernel_us in cases():
        launch = OURS.graph_launch_us + OURS.graph_node_ns * kernels / 1000
        start = max(launch, OURS.kernel_floor_us + OURS.stream_gap_us)
        around = OURS.host_step_us + OURS.copy_us + OURS.sync_us
        played = around + start + kernels * kernel_us + (kernels - 1) * OURS.graph_gap_us
        assert full_itl_us(kernels, kernel_us, OURS) == pytest.approx(played)


@each_spec
@pytest.mark.catches("a-graph-waits-for-no-copy", "graph-gaps-are-stream-gaps")
def test_a_graph_step_takes_as_long_as_a_clock_that_plays_one_launch(spec: DeviceSpec) -> None:
    """The first node is issued with the graph; the others are issued the moment it is."""
    for slow_graph_us in (0.0, 30.0):  # a launch that ends before the copy does, or after it
        slow = replace(spec, graph_launch_us=spec.graph_launch_us + slow_graph_us)
        for kernels, kernel_us in cases():
            launch = slow.graph_launch_us + slow.graph_node_ns * kernels / 1000
            copied = slow.kernel_floor_us + slow.stream_gap_us
            ended = max(launch, copied) + kernels * kernel_us + (kernels - 1) * slow.graph_gap_us
            ready = max(ended, launch + slow.ahead_us)
            played = slow.host_step_us + slow.copy_us + ready + slow.sync_us
            assert full_itl_us(kernels, kernel_us, slow) == pytest.approx(played, rel=1e-9)


@pytest.mark.catches("ahead-is-a-sum")
def test_what_an_engine_does_ahead_costs_time_only_where_the_gpu_is_done_first() -> None:
    none = replace(H200, ahead_us=0.0)
    # 1000 kernels of 4.2 us outlast the work beside them
    assert full_itl_us(1000, 4.2, H200) == pytest.approx(full_itl_us(1000, 4.2, none))
    launch = H200.graph_launch_us + H200.graph_node_ns * 20 / 1000
    waited = H200.copy_us + launch + H200.ahead_us + H200.sync_us
    assert full_itl_us(20, 4.2, H200) == pytest.approx(waited)  # 20 do not


@pytest.mark.catches("graph-pays-per-node")
def test_a_thousand_kernels_more_cost_the_cpu_of_a_graph_almost_nothing() -> None:
    few, many = full_itl_us(100, 2.0, OURS), full_itl_us(1100, 2.0, OURS)
    on_gpu = 1000 * (2.0 + OURS.graph_gap_us)
    assert many - few == pytest.approx(on_gpu, abs=0.01 * OURS.cpu_launch_us * 1000)


def test_no_kernels_or_kernels_of_no_length_are_not_a_graph_step() -> None:
    for kernels, kernel_us in NOT_A_STEP:
        with pytest.raises(ValueError):
            refused = full_itl_us(kernels, kernel_us, OURS)
            pytest.fail(f"{kernels} kernels of {kernel_us} us took {refused} us, not a ValueError")


# ---------------------------------------------------------------- utilisation


@pytest.mark.catches("busy-means-waiting")
def test_utilisation_counts_kernels_and_nothing_else() -> None:
    assert utilisation(300, 2.0, 1200.0) == pytest.approx(0.5)
    assert utilisation(1591, 1.6, 17160.0) == pytest.approx(0.1483450)  # 2,545.6 of 17,160 us
    assert utilisation(1, 7.0, 7.0) == pytest.approx(1.0)


def test_utilisation_is_not_rounded_however_small_it_is() -> None:
    assert utilisation(78, 4.27174, 702345.6) == pytest.approx(78 * 4.27174 / 702345.6)


# ---------------------------------------------------------------- the crossover


@pytest.mark.catches(
    "weights-hide-nothing", "crossover-without-gap", "crossover-without-floor",
    "a-floor-hides-nothing",
)  # fmt: skip
def test_at_the_crossover_launching_is_hidden_and_one_request_earlier_it_is_not() -> None:
    rng = random.Random(2)
    for _ in range(50):
        kernels = rng.randint(100, 2000)
        base_us, request_us = rng.uniform(50, 500), rng.uniform(0.5, 40)

        def hidden(b: int, n: int = kernels, w: float = base_us, r: float = request_us) -> bool:
            per_kernel = H200.kernel_floor_us + H200.stream_gap_us + (w + b * r) / n
            return per_kernel >= H200.cpu_op_us

        smallest = bisect_left(range(10**6), True, lo=1, key=hidden)
        assert crossover(kernels, base_us, request_us, H200) == smallest


@pytest.mark.catches("a-batch-below-one")
def test_the_crossover_is_a_whole_number_and_never_below_a_batch_of_one() -> None:
    for kernels, base_us, request_us in ((10, 1e9, 1.0), (200, 100.0, 7.0)):
        batch = crossover(kernels, base_us, request_us, H200)
        assert isinstance(batch, int)
        assert batch >= 1
    assert crossover(10, 1e9, 1.0, H200) == 1


@pytest.mark.catches("rounded-down")
def test_kernels_that_hide_launching_exactly_hide_it() -> None:
    spec = replace(H200, cpu_op_us=8.0, kernel_floor_us=2.0, stream_gap_us=1.0)
    # 8 us to issue, 3 us of floor and gap: the kernels must compute for 5 us each
    assert crossover(100, 100.0, 40.0, spec) == 10
    assert crossover(100, 100.5, 40.0, spec) == 10
    assert crossover(100, 99.5, 40.0, spec) == 11
    for batch in range(1, 13):  # 500 us to hide: at this very batch nothing is left
        base_us = 500.0 - 40.0 * batch
        assert crossover(100, base_us, 40.0, spec) == batch


# ---------------------------------------------------------------- break-even


@pytest.mark.catches("part-of-a-replay")
def test_a_graph_pays_after_its_cost_divided_by_what_a_replay_saves() -> None:
    assert break_even_replays(1000.0, 12.0, 2.0) == 100
    assert break_even_replays(1001.0, 12.0, 2.0) == 101
    assert break_even_replays(3.0, 2.5, 2.0) == 6  # a replay that saves half a us pays, too
    hardly = 2.0 - 2.0**-15  # saves a thirty-thousandth of a us
    for capture_us, eager_us, graph_us in (
        (0.5, 12.0, 2.0), (1e6, 900.0, 899.75), (1.0, 2.0, hardly),
    ):  # fmt: skip
        replays = break_even_replays(capture_us, eager_us, graph_us)
        saved_us = eager_us - graph_us
        assert replays == pytest.approx(math.ceil(capture_us / saved_us), abs=1e-9)


@pytest.mark.catches("graphs-always-pay")
def test_a_graph_that_saves_nothing_never_pays() -> None:
    assert break_even_replays(1000.0, 2.0, 2.0) == math.inf
    assert break_even_replays(1000.0, 2.0, 3.0) == math.inf


# ---------------------------------------------------------------- all together


@pytest.mark.catches("graph-is-free")
def test_a_graph_of_long_kernels_saves_almost_nothing() -> None:
    eager, graph = eager_itl_us(300, 500.0, H200), full_itl_us(300, 500.0, H200)
    assert 0.99 * eager < graph < eager


def test_the_gpu_of_a_graph_is_busier_than_that_of_an_eager_step() -> None:
    eager, graph = eager_itl_us(1591, 1.6, H200), full_itl_us(1591, 1.6, H200)
    assert utilisation(1591, 1.6, eager) < utilisation(1591, 1.6, graph) < 1
