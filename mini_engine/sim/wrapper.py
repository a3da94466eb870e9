"""Lazy capture, as in vLLM: a wrapped function runs, is captured or is replayed, batch by batch.

In: a function, the run-time mode it is wrapped for, and for each call a descriptor of the batch.
Out: the function's output, from an eager run, or from the graph of that descriptor.

`GraphRunner` captures a ladder up front and pads. This wrapper does neither: its caller has padded,
and the first call with a new descriptor captures. vLLM 0.33 puts one around the whole model (FULL)
and one around each piece (PIECEWISE): `CUDAGraphWrapper` in `vllm/compilation/cuda_graph.py`. As
there, addresses are compared only while debugging; otherwise a moved input silently replays on the
old memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim.capture import Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer


@dataclass
class Entry:
    """The graph of one descriptor, once it is captured."""

    graph: Graph | None = None
    output: Buffer | None = None
    addresses: tuple[int, ...] = ()


class GraphWrapper:
    """Wraps `function(*inputs) -> Buffer` for one run-time mode."""

    def __init__(
        self,
        device: Device,
        function: Callable[..., Buffer],
        mode: CUDAGraphMode,
        *,
        pool: int | None = None,
        debug: bool = False,
    ) -> None:
        if mode not in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
            raise ValueError(f"a wrapper for {mode.name}: graphs exist for FULL and PIECEWISE only")
        self.device, self.function, self.mode = device, function, mode
        self.pool = device.memory.new_pool() if pool is None else pool
        self.debug = debug
        self.capturing_enabled = True  # an engine turns it off once it serves
        self.entries: dict[BatchDescriptor, Entry] = {}

    def __call__(self, descriptor: BatchDescriptor | None, *inputs: Buffer) -> Buffer:
        """Run for the batch of this descriptor; None where nobody has set one.

        Raises `RuntimeError` for a capture after capturing was disabled, `AssertionError` for a
        moved input while debugging.
        """
        if descriptor is None or descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        if entry.graph is None or entry.output is None:
            return self._capture(entry, descriptor, inputs)
        addresses = tuple(buffer.address for buffer in inputs)
        if self.debug and addresses != entry.addresses:
            raise AssertionError(
                "Input addresses for cudagraphs are different during replay. "
                f"Expected {list(entry.addresses)}, got {list(addresses)}"
            )
        entry.graph.replay()
        return entry.output

    def _capture(
        self, entry: Entry, descriptor: BatchDescriptor, inputs: Sequence[Buffer]
    ) -> Buffer:
        """Record the function. The output holds garbage until the first replay."""
        if not self.capturing_enabled:
            raise RuntimeError(
                "CUDA graph capturing detected at an inappropriate time. This operation is "
                f"currently disabled: capture {descriptor} before serving"
            )
        with self.device.capture(self.pool, f"graph of {descriptor.num_tokens}") as graph:
            output = self.function(*inputs)
        entry.graph, entry.output = graph, output
        entry.addresses = tuple(buffer.address for buffer in inputs)
        return output
