"""The simulated GPU: a CPU clock, a GPU clock, one in-order stream, and memory.

    device = Device(load_spec("h200"))
    x = device.upload(np.ones(4, np.float32))
    device.launch(scale, x, x, by=2.0)     # returns at once: only the CPU clock moves on
    device.read(x)                         # waits for the GPU, then copies back

A launch costs the CPU `cpu_op_us`, between graphs `live_op_us`, and the GPU what `kernel_us` says
(mini_engine/step/run.py). With `compute=False` the device only counts costs: kernels are not run
and big buffers take no memory. Copies from the host still happen, since the cost of attention
depends on the metadata that they bring."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

import numpy as np

from mini_engine.sim.capture import (
    BreakableGraph,
    CaptureError,
    Graph,
    Recorder,
    capturing,
    recording,
)
from mini_engine.sim.clocks import Clocks
from mini_engine.sim.launch import Buffer, Kernel, Node, Scalar, check_copy, copy
from mini_engine.sim.memory import DEFAULT_POOL, IllegalAddress, Memory
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.run import kernel_us


class Device(Clocks):
    def __init__(
        self, spec: DeviceSpec, *, compute: bool = True, memory_bytes: int | None = None,
        record: bool = False,
    ) -> None:  # fmt: skip
        """`memory_bytes` replaces the card's own; `record` keeps every event in `timeline`."""
        super().__init__(spec, record=record)
        self.compute = compute
        size = spec.vram_bytes if memory_bytes is None else memory_bytes
        self.memory = Memory(size, poison=compute)
        self._launch_us = spec.cpu_op_us
        self.recorder: Recorder | None = None  # set while capturing or tracing
        self._pool = DEFAULT_POOL

    def empty(
        self, shape: Sequence[int] | int, dtype: type | str = "float32", pool: int | None = None
    ) -> Buffer:
        """New memory, holding garbage. While capturing it comes from the graph's pool."""
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
        kind = np.dtype(dtype)
        if pool is None:
            pool = self.recorder.pool if self.recorder else self._pool
        block = self.memory.allocate(math.prod(shape) * kind.itemsize, pool)
        if self.recorder:
            self.recorder.allocated.append(block)
        return Buffer(self.memory, block, block.address, shape, kind)

    def upload(self, array: np.ndarray) -> Buffer:
        buffer = self.empty(array.shape, array.dtype.str)
        self.copy_(buffer, array)
        return buffer

    def free(self, buffer: Buffer) -> None:
        """Give the buffer's memory back to its pool. While capturing, only memory of the graph's
        pool may be freed, which later nodes then reuse; else it raises `CaptureError`."""
        buffer.check_alive("free")
        if self.recorder and buffer.block.pool != self.recorder.pool:
            self.refuse_in_capture(
                f"freeing the buffer at {buffer.address:#x}, which is not the graph's own"
            )
        self.memory.free(buffer.block, fill=self.recorder is None)

    @contextmanager
    def allocating_from(self, pool: int) -> Iterator[None]:
        """New memory comes from `pool` (as with `torch.cuda.use_mem_pool`)."""
        before, self._pool = self._pool, pool
        try:
            yield
        finally:
            self._pool = before

    def scratch(self) -> Scratch:
        return Scratch(self)

    def launch(
        self, kernel: Kernel, *buffers: Buffer, label: str | None = None, **scalars: Scalar
    ) -> None:
        """Submit one kernel. Returns at once; scalars are baked into the launch."""
        for buffer in buffers:
            buffer.check_alive(f"launch of {label or kernel.name}")
        self.submit(Node(kernel, buffers, scalars, label or kernel.name))

    def submit(self, node: Node) -> None:
        """Run `node` in the stream, or record it while capturing or tracing."""
        if self.recorder:
            self.recorder.record(node)
            return
        self.issue(node.label, self._launch_us, "kernel", [(node.label, self.cost_us(node))])
        self._execute(node)

    def copy_(self, target: Buffer, source: Buffer | np.ndarray) -> None:
        """Copy into `target`: from another buffer (a kernel) or from the host."""
        if isinstance(source, Buffer):
            check_copy(target, source.shape)
            self.launch(copy, target, source)
        else:
            self.copy_batch([(target, source)])

    def copy_batch(self, copies: Sequence[tuple[Buffer, np.ndarray]]) -> None:
        """Copy host arrays into buffers with one call (as `cudaMemcpyBatchAsync` does). Refused
        while capturing: the graph would hold the address of host memory that may move."""
        self.refuse_in_capture(
            "a copy from pageable host memory: copy into a static buffer before it"
        )
        for target, source in copies:
            target.check_alive("copy_")
            check_copy(target, np.shape(source))
        self.host_copy()
        for target, source in copies:
            if self.compute or target.dtype.kind in "iu":
                target.array[...] = source

    def run_graph(self, nodes: Sequence[Node], name: str) -> None:
        """Replay recorded nodes with one CPU call: `graph_launch_us + graph_node_ns × nodes`."""
        self.refuse_in_capture("launching a graph")
        works = [(node.label, self.cost_us(node)) for node in nodes]
        launch_us = graph_launch_us(len(nodes), self.spec)
        self.issue(f"launch {name} ({len(nodes)} nodes)", launch_us, "node", works)
        for node in nodes:
            self._execute(node)

    def capture(
        self, pool: int | None = None, name: str = "graph"
    ) -> AbstractContextManager[Graph]:
        """`with device.capture() as graph:` records launches and executes none of them. `pool` is
        one that earlier graphs use; without it the graph gets a pool of its own."""
        return capturing(self, Graph(self, pool, name))

    def capture_breakable(
        self, break_on: Collection[str], pool: int | None = None, name: str = "graph"
    ) -> AbstractContextManager[BreakableGraph]:
        """The same, cut into graphs at each launch whose label is in `break_on`."""
        return capturing(self, BreakableGraph(self, pool, name, frozenset(break_on)))

    @contextmanager
    def trace(self, pool: int) -> Iterator[list[Node]]:
        """`with device.trace(pool) as nodes:` lists launches, as a compiler traces them."""
        nodes: list[Node] = []
        with recording(self, pool, nodes.append):
            yield nodes

    @contextmanager
    def live(self) -> Iterator[None]:
        self._launch_us = self.spec.live_op_us
        try:
            yield
        finally:
            self._launch_us = self.spec.cpu_op_us

    def synchronize(self) -> None:
        self.refuse_in_capture("synchronize")
        self.drain()

    def read(self, buffer: Buffer) -> np.ndarray:
        """Wait for the GPU and copy the buffer to the host: the only way out."""
        self.refuse_in_capture("reading a buffer back, which waits for the GPU")
        buffer.check_alive("read")
        self.synchronize()
        return buffer.array.copy()

    def cost_us(self, node: Node) -> float:
        """What a node takes on the GPU now, the gap before it left out."""
        op = OpCost(node.label, float(node.bytes), float(node.flops), kind=node.kernel.kind)
        return kernel_us(op, self.spec)

    def _execute(self, node: Node) -> None:
        self.counters.bytes += node.bytes
        if self.compute:
            try:
                with np.errstate(all="ignore"):  # padded rows hold garbage, and nobody reads them
                    node.run()
            except IndexError as error:
                raise IllegalAddress(f"an illegal memory access in {node.label}: {error}") from None

    def refuse_in_capture(self, what: str) -> None:
        """Raise `CaptureError` if a capture is under way, which is then lost too."""
        if self.recorder:
            message = f"operation not permitted when the stream is capturing: {what}"
            self.recorder.invalid = message
            raise CaptureError(message)


class Scratch:
    """`with device.scratch() as scratch:` buffers of one forward pass, which are freed together at
    the end, even after an error, unless kept."""

    def __init__(self, device: Device) -> None:
        self.device, self.buffers = device, list[Buffer]()

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, *_: object) -> None:
        for buffer in self.buffers:
            if buffer.block.owned_by(buffer.serial):
                self.device.free(buffer)

    def empty(self, *shape: int, dtype: type | str = "float32") -> Buffer:
        self.buffers.append(self.device.empty(shape, dtype))
        return self.buffers[-1]

    def keep(self, buffer: Buffer) -> Buffer:
        """The caller frees it."""
        self.buffers.remove(buffer)
        return buffer
