"""Lab 0: nothing runs while a step is recorded, and all of it, with one launch, when replayed; and
what it computes is what stands where it reads."""

from __future__ import annotations

import numpy as np
import pytest

from labs.lab00_one_capture.one_step import feed, launches_of_a_token, played, record
from labs.support.lanes import length_us
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.step.cards import load_spec


def doubling() -> tuple[Device, object, object]:
    """A device, a buffer of ones on it, and a step that doubles the buffer twice."""
    device = Device(load_spec("h200"), memory_bytes=64 * 2**20)
    x = device.upload(np.ones(4, np.float32))

    def step() -> None:
        device.launch(k.scale, x, x, by=2.0)
        device.launch(k.scale, x, x, by=2.0)

    return device, x, step


@pytest.mark.catches("a-name-is-a-call", "what-is-recorded-is-in-the-body")
def test_every_launch_of_the_step_is_in_the_graph() -> None:
    device = Device(load_spec("h200"), compute=False, record=True)
    model, _ = launches_of_a_token(device)
    before = device.counters.kernels
    model()
    launched = device.counters.kernels - before
    recorded = len(record(device, model).nodes)
    assert recorded == launched, "kernels in the graph, and kernels that the step launches"


@pytest.mark.catches("a-capture-computes", "what-is-recorded-is-in-the-body")
def test_recording_runs_nothing() -> None:
    device, x, step = doubling()
    record(device, step)
    assert device.read(x).tolist() == [1.0] * 4, "x was doubled while the step was recorded"


@pytest.mark.catches("a-name-is-a-call", "what-is-recorded-is-in-the-body", "a-capture-computes")
def test_each_replay_runs_the_whole_step_once() -> None:
    device, x, step = doubling()
    graph = record(device, step)
    for times in (1, 2, 3):
        graph.replay()
        assert device.read(x).tolist() == [4.0**times] * 4, f"after {times} replays"


def test_a_token_out_of_the_recording_takes_a_fifth_of_the_time() -> None:
    device = Device(load_spec("h200"), compute=False, record=True)
    model, choice = launches_of_a_token(device)
    launched = length_us(played(device, model, choice))
    replayed = length_us(played(device, record(device, model).replay, choice))
    assert replayed < launched / 5


@pytest.mark.catches("a-graph-knows-names", "played-before-it-is-fed")
def test_a_recording_computes_the_values_that_it_is_fed() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * 2**20)
    x, y = (device.upload(np.zeros(2, np.float32)) for _ in range(2))
    with device.capture() as graph:
        device.launch(k.scale, y, x, by=0.5)
    found = []
    for values in ([8.0, 6.0], [1.0, 3.0], [8.0, 6.0]):
        before = device.counters.copy()
        feed(device, graph, x, np.array(values, np.float32))
        did = device.counters.since(before)
        found.append(device.read(y).tolist())
        ran = did.launches, did.graphs, did.kernels
        assert ran == (2, 1, 1), "launches, of them graphs; and kernels that ran"
    assert found == [[4.0, 3.0], [0.5, 1.5], [4.0, 3.0]], "half of what it was fed, each time"
