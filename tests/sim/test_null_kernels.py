"""Boundaries are counted once: an empty kernel takes what is published, from start to start.

2.1 µs in a stream and 1.3 µs in a graph, on an H100: "Look Ma, No Bubbles",
https://hazyresearch.stanford.edu/blog/2025-05-27-no-bubbles.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from mini_engine.sim.device import Device
from mini_engine.sim.launch import Kernel, cost_kernel
from mini_engine.step.cards import DeviceSpec, load_spec

CHAIN = 100
NULL = cost_kernel("null", 0, 0)
# The CPU is never late, and a kernel that does something has a floor: neither may show.
SPECS = [
    replace(load_spec("h100", engine=engine), cpu_op_us=0.5)
    for engine in ("vllm", "launch-bound", "transformers")
]


def apart_us(device: Device, kernel: Kernel, kind: str) -> list[float]:
    """From start to start on the GPU, of a chain of this kernel, which are events of this kind."""
    for _ in range(CHAIN):
        device.launch(kernel)
    return [b - a for a, b in pairwise(e.start_us for e in device.timeline if e.category == kind)]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.engine)
def test_a_chain_of_empty_kernels_takes_2_1_us_each_in_a_stream_and_1_3_in_a_graph(
    spec: DeviceSpec,
) -> None:
    device = Device(spec, record=True)
    with device.capture() as graph:
        apart_us(device, NULL, "node")
    graph.replay()
    assert apart_us(device, NULL, "node") == pytest.approx([1.3] * (CHAIN - 1))
    assert apart_us(Device(spec, record=True), NULL, "kernel") == pytest.approx([2.1] * (CHAIN - 1))


def test_a_kernel_that_moves_something_has_its_floor_besides() -> None:
    moving = cost_kernel("moving", SPECS[0].copy_bandwidth_gb_s * 1e3, 0)  # one µs of bytes
    each = 1 + SPECS[0].kernel_floor_us + 2.1
    found = apart_us(Device(SPECS[0], record=True), moving, "kernel")
    assert found == pytest.approx([each] * (CHAIN - 1))
