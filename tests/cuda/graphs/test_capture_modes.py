"""The emulator's own words on threads beside a capture, and its device that is late.

`test_graph_contract.py` has what a GPU does, too.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor

from labs.support.loading import allocate, give_back, host_zeros
from mini_engine.cuda.graphs import emulator
from mini_engine.cuda.graphs.backend import graphs_for
from mini_engine.cuda.graphs.emulator import CUDAGraph
from mini_engine.cuda.graphs.tape import MODES, CaptureError, underway
from tests.support.late_device import late_device

GRAPHS = graphs_for("cpu")
DEVICE, SIDE = torch.ones(4), emulator.Stream()


def host(*, pinned: bool, value: float = 0.0) -> Tensor:
    return host_zeros(GRAPHS, 4, pinned=pinned).fill_(value)


UNSAFE: dict[str, Callable[[], object]] = {
    "cudaMalloc of 1,024 bytes": partial(allocate, GRAPHS, 1024),
    "Stream.synchronize": SIDE.synchronize,
    "Event.synchronize": emulator.Event().synchronize,
    "a copy from or to pageable memory": lambda: DEVICE.copy_(host(pinned=False)),
    "a copy that waits for its stream": lambda: DEVICE.copy_(host(pinned=True)),
}


def in_a_thread(call: Callable[[], object], name: str = "loader") -> str | None:
    """What a thread of this name is told when it makes the call."""
    told: list[str] = []

    def work() -> None:
        try:
            call()
        except CaptureError as error:
            told.append(str(error))

    thread = threading.Thread(target=work, name=name)
    thread.start()
    thread.join()
    return told[0] if told else None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("call", UNSAFE)
def test_the_mode_says_to_whom_an_unsafe_call_is_forbidden(mode: str, call: str) -> None:
    def by_this_thread() -> None:
        with emulator.stream(SIDE):
            UNSAFE[call]()

    for own, forbidden in ((True, mode != "relaxed"), (False, mode == "global")):
        said = None
        try:
            with emulator.graph(CUDAGraph(), capture_error_mode=mode):
                DEVICE * 2
                by_this_thread() if own else in_a_thread(UNSAFE[call])
        except CaptureError as error:
            said = str(error)
        assert bool(said and call in said) == forbidden, (own, said)
        assert not underway


@pytest.mark.parametrize("mode", MODES)
def test_no_mode_permits_another_thread_to_wait_for_the_whole_device(mode: str) -> None:
    with (
        pytest.raises(CaptureError, match="by thread 'loader'"),
        emulator.graph(CUDAGraph(), capture_error_mode=mode),
    ):
        assert in_a_thread(emulator.synchronize)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("wait", ["event", "stream"])
def test_no_mode_permits_waiting_for_what_is_captured(mode: str, wait: str) -> None:
    event = emulator.Event()
    with (
        pytest.raises(CaptureError, match="waits for the device"),
        emulator.graph(CUDAGraph(), capture_error_mode=mode),
    ):
        event.record()
        (event if wait == "event" else emulator.current_stream()).synchronize()


def test_what_the_capturing_stream_allocates_comes_from_the_pool() -> None:
    pool = emulator.graph_pool_handle()
    with emulator.graph(CUDAGraph(), pool=pool):
        DEVICE * 2
        before = pool.reserved_bytes
        address = allocate(GRAPHS, 4096)
        assert pool.reserved_bytes == before + 4096
    give_back(GRAPHS, address)
    with pytest.raises(KeyError):  # it has been given back
        give_back(GRAPHS, address)


# -- a device that is late -----------------------------------------------------------------------


@pytest.mark.parametrize("in_graph", [True, False])
@pytest.mark.parametrize("waits", [True, False])
def test_a_host_that_writes_before_the_copy_has_run_feeds_the_wrong_step(
    in_graph: bool, waits: bool
) -> None:
    """Copy nodes and copies before a replay alike; the event that both need is the same."""
    x, total, pinned = torch.zeros(4), torch.zeros(4), host(pinned=True)
    graph, copied = CUDAGraph(), emulator.Event()
    with emulator.graph(graph):
        if in_graph:
            x.copy_(pinned, non_blocking=True)
        total.add_(x)
    with late_device():
        for value in (1.0, 2.0):
            if waits:
                copied.synchronize()
            pinned.fill_(value)
            if not in_graph:
                x.copy_(pinned, non_blocking=True)
            graph.replay()
            copied.record()
    assert total.tolist() == [3 if waits else 4] * 4


def test_an_event_waits_for_what_came_before_it_and_no_more() -> None:
    with emulator.graph(graph := CUDAGraph()):
        DEVICE.add_(0)
    event = emulator.Event()
    with late_device() as queue:
        graph.replay()
        event.record()
        graph.replay()
        assert len(queue.waiting) == 2
        event.synchronize()
        assert len(queue.waiting) == 1
        DEVICE.sum()  # an op of the device runs after all that was given before it
        assert not queue.waiting
