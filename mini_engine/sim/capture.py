"""Capture and replay: record launches without running them, then run them all with one call.

In: the launches between `with device.capture() as graph:` and its end. Out: a `Graph`.

What makes a CUDA graph fast is what makes it dangerous: it remembers kernels, **addresses** and
scalars, and nothing else. Not the Python name that stood for the address, not the `if` that chose
the kernel, not the value of a loop counter. So here, too:

* nothing executes while capturing: outputs hold garbage until the first replay;
* whatever needs the GPU's answer (reading back, synchronising), frees foreign memory, copies from
  the host or begins another capture raises `CaptureError` and invalidates the capture;
* memory allocated meanwhile comes from the graph's pool and stays mapped as long as the graph.

A *breakable* capture is cut at marked launches: each ends the graph, will run live, and opens the
next graph. B breaks make B + 1 graphs, as in vLLM 0.33's breakable capture.

Sources: CUDA C++ Programming Guide, "CUDA Graphs: Creating a Graph Using Stream Capture";
torch.cuda.CUDAGraph, "Graph memory management".
"""

from __future__ import annotations

from types import TracebackType
from typing import TYPE_CHECKING

from mini_engine.sim.launch import Node, NodeCost
from mini_engine.sim.memory import Block

if TYPE_CHECKING:
    from mini_engine.sim.device import Device


class CaptureError(RuntimeError):
    """Something that a capturing stream does not permit, or a graph that cannot be replayed."""


class Recorder:
    """What receives launches instead of the stream."""

    def __init__(self, device: Device, pool: int) -> None:
        self.device, self.pool = device, pool
        self.allocated: list[Block] = []  # while recording
        self.invalid: str | None = None  # what killed the recording
        self._used = False

    def record(self, node: Node) -> None:
        raise NotImplementedError

    def _start(self) -> None:
        """Begin the recording. What its pool hands out stays mapped, freed or not, to the end."""
        if self.device.recorder:
            self.device.refuse("beginning a capture inside a capture")
        if self._used:
            raise CaptureError("this capture was begun before: call capture() for another one")
        self._used = True
        self.device.memory.pin(self.pool)
        self.device.recorder = self

    def _stop(self, failed: bool) -> None:
        """End the recording. A failed one leaves no memory behind."""
        self.device.recorder = None
        self.device.memory.pin(self.pool, -1)
        if failed:
            for block in self.allocated:
                if not block.free and block in block.segment.blocks:
                    self.device.memory.free(block)


class Graph:
    """Recorded launches. `replay()` runs them on whatever their addresses hold by then."""

    def __init__(self, device: Device, pool: int, name: str) -> None:
        self.device, self.pool, self.name = device, pool, name
        self.nodes: list[Node] = []
        self.state = "capturing"  # then "ready", "invalid" or "released"
        self._costs: list[NodeCost | None] = []  # by node; None where it hangs on contents

    def replay(self) -> None:
        """One launch for all nodes. Raises `CaptureError` unless the capture ended well."""
        if self.state != "ready":
            raise CaptureError(f"replay of {self.name}, which is {self.state}: capture it first")
        costs = [
            known or self.device.cost(node)
            for node, known in zip(self.nodes, self._costs, strict=True)
        ]
        self.device.run_graph(self.nodes, costs, self.name)

    def instantiate(self) -> None:
        """Make it ready to launch: costs the CPU `instantiate_node_us` a node."""
        spec = self.device.spec
        cost = spec.instantiate_node_us * len(self.nodes)
        self.device.host_work(f"instantiate {self.name}", cost)
        self._costs = [
            None if node.kernel.dynamic else self.device.cost(node) for node in self.nodes
        ]
        self.device.memory.pin(self.pool)
        self.state = "ready"

    def release(self) -> None:
        """Forget the nodes. The pool's memory may then go back to the device."""
        if self.state == "ready":
            self.device.memory.pin(self.pool, -1)
        self.nodes, self.state = [], "released"

    @property
    def driver_bytes(self) -> int:
        """What the driver keeps for the nodes, beside the pool."""
        return int(self.device.spec.graph_node_bytes * len(self.nodes))


class SegmentedGraph:
    """Graphs with live launches between them: a piecewise or a broken capture."""

    def __init__(self, device: Device) -> None:
        self.device = device
        self.segments: list[Graph | Node] = []

    def replay(self) -> None:
        """Replay each graph and submit each live launch, in the order of `segments`.

        The GPU runs them in the order in which they are submitted: a live launch reads what the
        graph before it wrote, and the graph after it reads what the live launch wrote.
        """
        for segment in self.segments:
            if isinstance(segment, Graph):
                segment.replay()
            else:
                self.device.submit(segment)

    def release(self) -> None:
        for graph in self.graphs:
            graph.release()

    @property
    def graphs(self) -> list[Graph]:
        return [s for s in self.segments if isinstance(s, Graph)]

    @property
    def live(self) -> list[Node]:
        """The launches that run eagerly at each replay."""
        return [s for s in self.segments if isinstance(s, Node)]

    @property
    def nodes(self) -> list[Node]:
        """The captured launches of all graphs."""
        return [node for graph in self.graphs for node in graph.nodes]

    @property
    def driver_bytes(self) -> int:
        return sum(graph.driver_bytes for graph in self.graphs)


class Capture(Recorder):
    """The context manager behind `Device.capture`."""

    def __init__(self, device: Device, pool: int, name: str) -> None:
        super().__init__(device, pool)
        self.graphs = [Graph(device, pool, name)]

    def __enter__(self) -> Graph:
        self._start()
        return self.graphs[0]

    def record(self, node: Node) -> None:
        spec = self.device.spec
        cost = spec.cpu_op_us + spec.capture_node_us
        self.device.host_work(f"capture {node.label}", cost)
        self._append(node)

    def _append(self, node: Node) -> None:
        self.graphs[-1].nodes.append(node)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        failed = kind is not None or self.invalid is not None
        self._stop(failed)
        for graph in self.graphs:
            if failed:
                graph.nodes, graph.state = [], "invalid"
            else:
                graph.instantiate()
        if self.invalid and kind is None:
            raise CaptureError(
                f"{self.graphs[0].name} was invalidated while capturing: {self.invalid}"
            )


class BreakableCapture:
    """The context manager behind `Device.capture_breakable`: a capture that marked ops cut."""

    def __init__(self, device: Device, pool: int, name: str, break_on: frozenset[str]) -> None:
        self._capture = _CutAtBreaks(device, pool, name, break_on)

    def __enter__(self) -> SegmentedGraph:
        self._capture.__enter__()
        return self._capture.cut

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._capture.__exit__(kind, error, traceback)


class _CutAtBreaks(Capture):
    def __init__(self, device: Device, pool: int, name: str, break_on: frozenset[str]) -> None:
        super().__init__(device, pool, name)
        self.break_on = break_on
        self.cut = SegmentedGraph(device)
        self.cut.segments.append(self.graphs[0])

    def _append(self, node: Node) -> None:
        """Put a launch where it belongs: a marked one into the cut, any other into a graph.

        `graphs` are all graphs of this capture; the open one is the last. `cut.segments` holds the
        same graphs, with the marked launches, which will run live, between them. A marked launch
        ends the open graph and opens the next, even if no other launch follows or lies between.
        Every graph has the name of the first, and the pool.
        """
        if node.label not in self.break_on:
            super()._append(node)
            return
        self.graphs.append(Graph(self.device, self.pool, self.graphs[0].name))
        self.cut.segments += [node, self.graphs[-1]]


class Tracing(Recorder):
    """The context manager behind `Device.trace`: a flat list of the launches, nothing run."""

    def __init__(self, device: Device, pool: int) -> None:
        super().__init__(device, pool)
        self.nodes: list[Node] = []

    def __enter__(self) -> list[Node]:
        self._start()
        return self.nodes

    def record(self, node: Node) -> None:
        self.nodes.append(node)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stop(kind is not None or self.invalid is not None)
