"""Capture does not execute, replay reads addresses, and what a capture forbids kills it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest

from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError, Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer, Kernel
from mini_engine.sim.memory import IllegalAddress
from tests.support.sim_helpers import small_device
from tests.support.vllm_vectors import vectors

ONES = np.ones(8, np.float32)


def doubled(device: Device) -> tuple[Buffer, Buffer, Graph]:
    """x, y and a graph of y = 2x."""
    x, y = device.upload(ONES), device.empty(8)
    with device.capture() as graph:
        device.launch(k.scale, y, x, by=2.0)
    return x, y, graph


def test_capture_executes_nothing() -> None:
    device = small_device()
    _, y, _ = doubled(device)
    assert np.isnan(device.read(y)).all()


def test_replay_runs_on_what_stands_at_the_addresses_now() -> None:
    device = small_device()
    x, y, graph = doubled(device)
    graph.replay()
    assert (device.read(y) == 2).all()
    device.copy_(x, 5 * ONES)
    graph.replay()
    assert (device.read(y) == 10).all()


def test_replay_ignores_a_rebound_input() -> None:
    device = small_device()
    x, y, graph = doubled(device)
    x = device.upload(5 * ONES)  # the name moves on, the address in the graph does not
    graph.replay()
    assert (device.read(y) == 2).all()
    assert (device.read(x) == 5).all()


def test_a_python_scalar_is_baked_in() -> None:
    device = small_device()
    x, y, factor = device.upload(ONES), device.empty(8), 2.0
    with device.capture() as graph:
        device.launch(k.scale, y, x, by=factor)
    factor = 7.0
    graph.replay()
    assert (device.read(y) == 2).all()


def test_a_replay_is_one_cpu_call_and_its_nodes_run_back_to_back() -> None:
    device = small_device()
    x = device.upload(ONES)
    with device.capture() as graph:
        for _ in range(10):
            device.launch(k.scale, x, x, by=1.0)
    device.synchronize()
    before, began = device.counters.launches, device.cpu_us
    gpu_began = device.cpu_us + 3.0 + 10 * 0.1
    graph.replay()
    assert device.counters.launches == before + 1
    assert device.cpu_us == pytest.approx(began + 3.0 + 10 * 0.1)
    node_us = 2 * 32 / 1000 + 0.5
    assert device.gpu_us == pytest.approx(gpu_began + 10 * node_us + 9 * 1.0)


def test_capturing_costs_the_cpu_for_each_node() -> None:
    device = small_device()
    device.synchronize()
    began, gpu = device.cpu_us, device.gpu_us
    x = device.empty(8)
    with device.capture():
        for _ in range(4):
            device.launch(k.scale, x, x, by=1.0)
    assert device.cpu_us == pytest.approx(began + 4 * (5.0 + 1.0) + 4 * 2.0)
    assert device.gpu_us == gpu


FORBIDDEN: dict[str, Callable[[Device, Buffer, Graph], object]] = {
    "reading a buffer back": lambda device, x, _: device.read(x),
    "synchronize": lambda device, *_: device.synchronize(),
    "freeing the buffer": lambda device, x, _: device.free(x),
    "pageable host memory": lambda device, x, _: device.copy_(x, ONES),
    "a capture inside a capture": lambda device, *_: device.capture().__enter__(),
    "beginning a capture": lambda device, *_: device.trace(0).__enter__(),
    "launching a graph": lambda _device, _x, graph: graph.replay(),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_what_a_capturing_stream_does_not_permit_is_refused(what: str) -> None:
    device = small_device()
    x, _, other = doubled(device)
    message = f"not permitted when the stream is capturing: .*{what}"
    with pytest.raises(CaptureError, match=message), device.capture() as graph:
        FORBIDDEN[what](device, x, other)
    assert graph.state == "invalid"
    with pytest.raises(CaptureError, match="which is invalid"):
        graph.replay()
    assert device.recorder is None
    device.read(x)  # the device goes on


def test_swallowing_the_error_does_not_save_the_capture() -> None:
    device = small_device()
    x, y, _ = doubled(device)
    message = r"was invalidated while capturing: .*reading a buffer"
    with pytest.raises(CaptureError, match=message), device.capture() as graph:
        with suppress(CaptureError):
            device.read(x)
        device.launch(k.scale, y, x, by=2.0)
    assert graph.state == "invalid"


def test_a_capture_made_before_another_began_cannot_begin_inside_it() -> None:
    device = small_device()
    x, first, second = device.upload(ONES), device.capture(), device.capture()
    with pytest.raises(CaptureError, match="a capture inside a capture"), first:
        with second:
            device.launch(k.scale, x, x, by=3.0)
    assert (device.read(x) == 1).all()


def test_memory_pressure_inside_a_capture_leaves_its_addresses_mapped() -> None:
    device = small_device(megabytes=8)
    x = device.upload(np.ones(600_000, np.float32))
    with device.capture() as graph:
        y = device.empty(600_000)
        device.launch(k.scale, y, x, by=2.0)
        device.free(y)
        device.memory.release_cached()
    graph.replay()


@pytest.mark.parametrize("index", [4, 9, -1, -4])
def test_an_index_out_of_its_buffer_is_an_illegal_access(index: int) -> None:
    device = small_device()
    table = device.upload(np.ones((4, 8), np.float32))
    ids = device.upload(np.array([index], np.int32))
    with pytest.raises(IllegalAddress, match="illegal memory access in embed"):
        device.launch(k.embed, device.empty((1, 8)), ids, table)


def ones(*shape: int, kind: type = np.float32) -> np.ndarray:
    return np.ones(shape, kind)


INDEX, TABLE = ones(1, kind=np.int32), ones(1, 1, kind=np.int32)
ROW, CACHE = ones(1, 8), ones(2, 4, 1, 8)
ROPE = (ones(1, 24), INDEX, INDEX, ones(9, 4), ones(9, 4))
SEEN = (TABLE, INDEX, INDEX)


@pytest.mark.parametrize(
    ("kernel", "arrays", "indices"),
    [
        (k.select_rows, (ROW, ones(2, 8), INDEX), 1),
        (k.rope_kv_write, (ROW, CACHE, CACHE, *ROPE), 2),
        (k.attention, (ROW, ROW, CACHE, CACHE, *SEEN), 1),
    ],
    ids=["select_rows", "rope", "attention"],
)
def test_an_index_of_minus_one_is_refused_by_every_kernel_that_has_one(
    kernel: Kernel, arrays: tuple[np.ndarray, ...], indices: int
) -> None:
    device = small_device()
    buffers = [device.upload(array) for array in arrays]
    device.launch(kernel, *buffers)
    assert len(kernel.indices) == indices
    for place in kernel.indices:
        device.copy_(buffers[place], -arrays[place])
        with pytest.raises(IllegalAddress, match="index -1 is before the start"):
            device.launch(kernel, *buffers)
        device.copy_(buffers[place], arrays[place])


def test_a_failed_capture_leaves_no_memory_behind() -> None:
    device = small_device()
    before = device.memory.allocated_bytes()
    with pytest.raises(CaptureError), device.capture():
        device.empty(1000)
        device.synchronize()
    assert device.memory.allocated_bytes() == before
    device.memory.release_cached()
    assert device.memory.reserved_bytes() == 0


def test_memory_of_a_capture_comes_from_the_graphs_pool_and_stays() -> None:
    device = small_device()
    with device.capture() as graph:
        y = device.empty(8)
        device.free(y)  # the graph's own: later nodes may reuse it
    assert y.block.pool == graph.pool
    device.memory.release_cached()
    assert device.memory.reserved_bytes(graph.pool) > 0
    graph.replay()


def test_a_freed_static_input_is_read_by_the_graph_all_the_same() -> None:
    device = small_device()
    x, y, graph = doubled(device)
    device.free(x)
    graph.replay()
    assert np.isnan(device.read(y)).all()
    device.upload(9 * ONES)  # somebody else gets the address
    graph.replay()
    assert (device.read(y) == 18).all()


def test_an_address_that_was_given_back_to_the_device_is_an_illegal_access() -> None:
    device = small_device()
    x = device.upload(ONES)
    with device.capture() as graph:
        y = device.empty(8)
        device.launch(k.scale, y, x, by=2.0)
    device.free(x)
    device.memory.release_cached()
    with pytest.raises(IllegalAddress):
        graph.replay()


@pytest.mark.parametrize("vector", vectors("breakable_capture"), ids=str)
def test_breakable_capture_cuts_as_vllm_0_33_does(vector: dict) -> None:
    device = small_device()
    x = device.upload(ONES)
    ran: list[str] = []
    expect = vector["expect"]

    def forward() -> None:
        for op in vector["ops"]:
            device.launch(k.scale, x, x, by=2.0, label=op)

    if vector["ctx_mode"] == "FULL":
        with device.capture() as graph:
            forward()
        counts = (1, 0, 1, 0)
    else:
        with device.capture_breakable({"A"}) as broken:
            forward()
        graph = broken
        submit = device.submit
        device.submit = lambda node: (ran.append(node.label), submit(node))  # type: ignore[assignment]
        counts = (len(broken.graphs), len(broken.live), len(broken.launches), len(broken.live))
    graph.replay()
    assert (device.read(x) == 2.0 ** len(vector["ops"])).all()
    assert counts == (
        expect["num_graphs"],
        expect["num_eager_breaks"],
        expect["segments"],
        expect["replay_runs_eager_ops"],
    )
    assert len(ran) == expect["replay_runs_eager_ops"]
