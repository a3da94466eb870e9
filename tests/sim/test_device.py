"""The two clocks, the queue, and what a launch may be given."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import UseAfterFree, cost_kernel
from mini_engine.sim.trace import CPU, GPU, busy_us
from tests.support.sim_helpers import round_spec, small_device

ONES = np.ones(250, np.float32)  # 1,000 bytes: 1 µs at 1 GB/s


def test_a_launch_returns_before_the_kernel_has_run() -> None:
    device = small_device()
    device.launch(cost_kernel("big", bytes=100_000, flops=0))
    assert device.cpu_us == 5.0
    assert device.gpu_us == 5.0 + 100.0 + 0.5


def test_small_kernels_wait_for_the_cpu_and_big_ones_for_the_gpu() -> None:
    small, big = small_device(), small_device()
    for _ in range(10):
        small.launch(cost_kernel("small", bytes=1000, flops=0))
        big.launch(cost_kernel("big", bytes=20_000, flops=0))
    assert small.gpu_us == 10 * 5.0 + 1.5  # each starts when it arrives: 1.5 + 2 of gap < 5
    assert big.gpu_us == pytest.approx(5.0 + 10 * 20.5 + 9 * 2.0)


def test_a_kernel_takes_the_longer_of_bytes_and_flops() -> None:
    device = small_device()
    device.launch(cost_kernel("compute", bytes=1000, flops=30e6))  # 30 µs at 1 TFLOP/s
    assert device.gpu_us == 5.0 + 30.0 + 0.5


def test_a_kernel_reads_as_fast_as_its_kind_does() -> None:
    spec = replace(round_spec(), product_gb_s=0.5, attention_gb_s=0.25)
    device = Device(spec, compute=False, record=True)
    for kind in ("other", "product", "attention"):
        device.launch(cost_kernel("a", bytes=1000, flops=0, kind=kind))  # type: ignore[arg-type]
    ran = [e.duration_us - spec.kernel_floor_us for e in device.timeline if e.lane == GPU]
    assert ran == [1.0, 2.0, 4.0]


def test_a_launch_between_graphs_costs_what_a_live_one_does() -> None:
    device = Device(replace(round_spec(), live_op_us=40.0), compute=False)
    op = cost_kernel("op", bytes=1000, flops=0)
    device.launch(op)
    assert device.cpu_us == 5.0
    with device.live():
        device.launch(op)
    device.launch(op)
    assert device.cpu_us == 5.0 + 40.0 + 5.0


def test_the_cpu_blocks_when_the_queue_is_full() -> None:
    device = Device(replace(round_spec(), queue_depth=2), memory_bytes=2**22, record=True)
    for _ in range(3):
        device.launch(cost_kernel("big", bytes=100_000, flops=0))
    assert device.cpu_us == pytest.approx(105.5 + 5.0)  # the third waits for the first to end
    assert any(event.name == "queue full" for event in device.timeline)


def test_reading_back_waits_for_the_gpu() -> None:
    device = small_device()
    x = device.upload(ONES)
    device.launch(k.scale, x, x, by=3.0)
    assert (device.read(x) == 3.0).all()
    assert device.cpu_us == device.gpu_us + 6.0


def test_the_result_of_read_is_a_copy() -> None:
    device = small_device()
    x = device.upload(ONES)
    host = device.read(x)
    device.launch(k.scale, x, x, by=3.0)
    assert (host == 1.0).all()


def test_the_timeline_adds_up_to_the_counters() -> None:
    device = small_device(record=True)
    x = device.upload(ONES)
    with device.capture() as graph:
        device.launch(k.add, x, x, x)
        device.launch(k.scale, x, x, by=0.5)
    graph.replay()
    device.launch(k.scale, x, x, by=2.0)
    device.host_work("think", 7.0)
    device.read(x)
    assert busy_us(device.timeline, CPU) == pytest.approx(device.counters.cpu_us)
    assert busy_us(device.timeline, GPU) == pytest.approx(device.counters.gpu_us)
    assert device.counters.kernels == 3
    assert device.counters.launches == 3  # a copy, a graph, a kernel


def test_cost_only_gives_the_same_times_and_computes_nothing() -> None:
    times = []
    for compute in (True, False):
        device = small_device(compute=compute)
        x, y = device.upload(ONES), device.empty(250)
        device.launch(k.add, y, x, x)
        device.synchronize()
        times.append((device.cpu_us, device.gpu_us, device.counters))
    assert times[0] == times[1]
    assert not (y.array == 2.0).any()


def test_a_large_model_takes_no_host_memory_when_only_costs_count() -> None:
    device = Device(round_spec(), compute=False)
    device.empty((60_000_000_000,), "int8")
    assert all(s.bytes_on_host is None for s in device.memory._segments)


def test_use_of_a_freed_buffer_is_refused() -> None:
    device = small_device()
    x, y = device.upload(ONES), device.empty(250)
    device.free(x)
    with pytest.raises(UseAfterFree, match=r"launch of add: the buffer at 0x.* was freed"):
        device.launch(k.add, y, x, x)
    with pytest.raises(UseAfterFree):
        device.read(x)
    with pytest.raises(UseAfterFree):
        device.copy_(x, ONES)
    with pytest.raises(UseAfterFree):
        device.free(x)


def test_a_stale_handle_is_refused_though_its_address_lives_again() -> None:
    device = small_device()
    old = device.upload(ONES)
    device.free(old)
    new = device.upload(ONES)
    assert new.address == old.address
    with pytest.raises(UseAfterFree):
        device.read(old)


def test_copies_must_have_the_same_shape() -> None:
    device = small_device()
    x = device.upload(ONES)
    with pytest.raises(ValueError, match=r"copy_ into \(250,\) from \(249,\)"):
        device.copy_(x, ONES[:-1])
    with pytest.raises(ValueError, match="copy_ into"):
        device.copy_(x, device.empty(3))


def test_slices_of_a_buffer_are_addresses_into_it() -> None:
    device = small_device()
    x = device.upload(np.arange(12, dtype=np.float32).reshape(4, 3))
    assert x[1:3].address == x.address + 12
    assert (device.read(x[1:3]) == [[3, 4, 5], [6, 7, 8]]).all()
    with pytest.raises(ValueError, match=r"buffer\[:5\] of a buffer with 4 rows"):
        x[:5]
    with pytest.raises(TypeError, match="only a slice of rows"):
        x[0]  # type: ignore[index]


def test_scratch_is_freed_even_when_the_pass_fails() -> None:
    device = small_device()
    with pytest.raises(RuntimeError, match="boom"), device.scratch() as scratch:
        scratch.empty(100)
        raise RuntimeError("boom")
    assert device.memory.allocated_bytes() == 0
