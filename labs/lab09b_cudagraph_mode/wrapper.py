"""Lazy capture, as in vLLM: a wrapped function runs, is captured or is replayed, batch by batch.

In: a function of buffers, the run-time mode it is wrapped for, and a context that says which batch
this call is of. Out: the function's output, from an eager run, or from the graph of that batch.

    context = ForwardContext()
    wrapper = GraphWrapper(device, function, CUDAGraphMode.PIECEWISE, context)
    with context.holding(descriptor):
        y = wrapper(x)                     # the first time captures, the second replays

`GraphRunner` captures a ladder up front and pads. This wrapper does neither: its caller has padded,
and the first call with a new descriptor captures. It models `CUDAGraphWrapper` of vLLM 0.33
(`vllm/compilation/cuda_graph.py`): one around each piece, and, in the older of its two model
runners, one around the whole model. `course/deeper/the-wrapper.md` holds the two side by side.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.sim.capture import Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer


class ForwardContext:
    """What a runner says of the step, for wrappers at any depth below it.

    The model between them takes tensors and no descriptor, so the descriptor goes around it. vLLM
    keeps both of these in module variables; here each wrapper is given the object.
    """

    def __init__(self) -> None:
        self.descriptor: BatchDescriptor | None = None  # None: nobody has set one
        self.capturing_enabled = True  # an engine may turn it off once it serves

    @contextmanager
    def holding(self, descriptor: BatchDescriptor | None) -> Iterator[None]:
        """The calls of the body are of this batch."""
        before, self.descriptor = self.descriptor, descriptor
        try:
            yield
        finally:
            self.descriptor = before


class WeakBuffer(Buffer):
    """An address without ownership: whatever stands there, whoever has the memory now."""

    def __init__(self, buffer: Buffer) -> None:
        super().__init__(buffer.memory, buffer.block, buffer.address, buffer.shape, buffer.dtype)

    def check_alive(self, use: str) -> None:
        """Nobody checks: that is what makes it weak."""

    def _at(self, address: int, shape: tuple[int, ...]) -> Buffer:
        return WeakBuffer(super()._at(address, shape))


@dataclass
class Entry:
    """The graph of one descriptor, once it is captured."""

    graph: Graph | None = None
    output: WeakBuffer | None = None
    addresses: tuple[int, ...] = ()


class GraphWrapper:
    """Wraps `function(*inputs) -> Buffer`, which allocates its output, for one run-time mode.

    `pool` is where captures allocate; wrappers whose graphs run one after another share one.
    `weak_output`: give the memory of the output back to the pool as soon as it is recorded. Right
    where no later graph of the pool reads it: of a row of pieces, for the last one only.
    `debug`: compare the addresses of the inputs at every replay.
    """

    def __init__(
        self,
        device: Device,
        function: Callable[..., Buffer],
        mode: CUDAGraphMode,
        context: ForwardContext,
        *,
        pool: int | None = None,
        weak_output: bool = True,
        debug: bool = False,
    ) -> None:
        if mode not in (CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE):
            raise ValueError(f"a wrapper for {mode.name}: graphs exist for FULL and PIECEWISE only")
        self.device, self.function, self.mode, self.context = device, function, mode, context
        self.pool = device.memory.new_pool() if pool is None else pool
        self.weak_output, self.debug = weak_output, debug
        self.entries: dict[BatchDescriptor, Entry] = {}

    def __call__(self, *inputs: Buffer) -> Buffer:
        """Run the function for the batch whose descriptor the context holds.

        Eagerly, if there is none or it is of another mode than this wrapper's: a wrapper further in
        or out may be meant. Otherwise the descriptor is the key. A graph that is there replays and
        gives the entry's `output`: one launch, and no wait for the GPU. Where there is none, also
        after a capture that failed, the function is captured. The inputs are not copied: the graph
        reads the addresses that it was captured with. Only while debugging are they compared, and
        `AssertionError` raised for an input that has moved.
        """
        descriptor = self.context.descriptor
        if descriptor is None or descriptor.mode is not self.mode:
            return self.function(*inputs)
        entry = self.entries.setdefault(descriptor, Entry())
        if entry.graph is None or entry.output is None:
            return self._capture(entry, inputs)
        addresses = tuple(buffer.address for buffer in inputs)
        if self.debug and addresses != entry.addresses:
            raise AssertionError(
                "Input addresses for cudagraphs are different during replay. "
                f"Expected {list(entry.addresses)}, got {list(addresses)}"
            )
        entry.graph.replay()
        return entry.output

    def _capture(self, entry: Entry, inputs: tuple[Buffer, ...]) -> Buffer:
        """Record the function into `entry`, from the wrapper's pool. Raises `RuntimeError` where
        the context has capturing disabled. There is no warm-up: the runner has already called with
        the mode at `NONE`.

        A capture that fails leaves the entry as it was. After one that ended well, the entry keeps
        the graph, the addresses of the inputs and a `WeakBuffer` of the output, which holds garbage
        until the first replay. With `weak_output` the output is freed once it is recorded, and the
        weak one is returned. Otherwise the caller gets the output itself, and frees it when no
        launch to be captured needs it any more.
        """
        if not self.context.capturing_enabled:
            raise RuntimeError(
                "CUDA graph capturing detected at an inappropriate time. This operation is "
                f"currently disabled: capture {self.context.descriptor} before serving"
            )
        with self.device.capture(self.pool, f"{self.mode.name} graph") as graph:
            output = self.function(*inputs)
            if self.weak_output:
                self.device.free(output)
        entry.graph, entry.output = graph, WeakBuffer(output)
        entry.addresses = tuple(buffer.address for buffer in inputs)
        return entry.output if self.weak_output else output
