"""Capture and replay: record launches without running them, then run them all with one call.

What makes a CUDA graph fast is what makes it dangerous: it remembers kernels, **addresses** and
scalars, and nothing else. It forgets the Python name that stood for an address, the `if` that chose
a kernel, the value of a loop counter. Here as on a GPU:

* nothing executes while capturing: outputs hold garbage until the first replay;
* these raise `CaptureError` and invalidate the capture: reading back or synchronising, freeing
  memory that is not of the graph's pool, copying from the host, launching a graph, beginning
  another capture;
* memory allocated meanwhile comes from the graph's pool, which stays mapped from then on.

Sources: CUDA C++ Programming Guide, "CUDA Graphs: Creating a Graph Using Stream Capture";
torch.cuda.CUDAGraph, "Graph memory management"."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

from mini_engine.sim.launch import Node
from mini_engine.sim.memory import Block

if TYPE_CHECKING:
    from mini_engine.sim.device import Device


class CaptureError(RuntimeError):
    """Something that a capturing stream does not permit, or a graph that cannot be replayed."""


class Graph:
    def __init__(self, device: Device, pool: int | None, name: str) -> None:
        self.device, self.name = device, name
        self.pool = device.memory.new_pool() if pool is None else pool
        self.nodes: list[Node] = []
        self.state = "capturing"  # then "ready" or "invalid"

    def append(self, node: Node) -> None:
        self.nodes.append(node)

    def replay(self) -> None:
        """One launch for all nodes. Raises `CaptureError` unless the capture ended well."""
        if self.state != "ready":
            raise CaptureError(f"replay of {self.name}, which is {self.state}: capture it first")
        self.device.run_graph(self.nodes, self.name)

    def instantiate(self) -> None:
        """Make it ready to launch: costs the CPU `instantiate_node_us` a node."""
        cost = self.device.spec.instantiate_node_us * len(self.nodes)
        self.device.host_work(f"instantiate {self.name}", cost)
        self.device.memory.pin(self.pool)
        self.state = "ready"

    @property
    def graphs(self) -> list[Graph]:
        return [self]

    @property
    def driver_bytes(self) -> int:
        """What the driver keeps for the nodes, beside the pool."""
        return int(self.device.spec.graph_node_bytes * len(self.nodes))


class PiecewiseGraph:
    def __init__(self, device: Device) -> None:
        self.device = device
        self.launches: list[Graph | Node] = []  # of a replay, in order; a node is launched live

    def replay(self) -> None:
        """Replay each graph and submit each node, in the order of `launches`, in which the GPU runs
        them: a live launch reads what the graph before it wrote."""
        for launch in self.launches:
            if isinstance(launch, Graph):
                launch.replay()
            else:
                self.device.submit(launch)

    @property
    def graphs(self) -> list[Graph]:
        return [launch for launch in self.launches if isinstance(launch, Graph)]

    @property
    def live(self) -> list[Node]:
        return [launch for launch in self.launches if isinstance(launch, Node)]

    @property
    def nodes(self) -> list[Node]:
        return [node for graph in self.graphs for node in graph.nodes]

    @property
    def driver_bytes(self) -> int:
        return sum(graph.driver_bytes for graph in self.graphs)


class BreakableGraph(PiecewiseGraph):
    """One capture, cut at launches whose label is in `break_on`, like vLLM 0.33's breakable one."""

    def __init__(
        self, device: Device, pool: int | None, name: str, break_on: frozenset[str]
    ) -> None:
        super().__init__(device)
        first = Graph(device, pool, name)
        self.pool, self.name, self.break_on = first.pool, name, break_on
        self.launches.append(first)

    def append(self, node: Node) -> None:
        """Take the next launch of the capture, in the order in which the function makes them.
        Afterwards a replay of `launches` must run every launch that was taken once, and in that
        order: the marked ones (label in `break_on`) live, all others as nodes of graphs, those
        between two marked ones in one graph. Its graphs have `self.pool` and `self.name`. Nothing
        runs before the replay, marked or not.

        Between two neighbouring marked launches, and after the last, an empty graph is allowed, as
        in vLLM, and so is none: B breaks leave B + 1 graphs at most. The first graph
        stands in `launches` from the beginning."""
        if node.label in self.break_on:
            self.launches += [node, Graph(self.device, self.pool, self.name)]
        else:
            self.graphs[-1].append(node)


@dataclass(eq=False)
class Recorder:
    """What receives launches in place of the stream."""

    record: Callable[[Node], None]
    pool: int  # new memory comes from here
    allocated: list[Block] = field(default_factory=list)
    invalid: str | None = None  # why the recording is lost


@contextmanager
def recording(device: Device, pool: int, record: Callable[[Node], None]) -> Iterator[Recorder]:
    """Give the launches of the body to `record`; none runs. Memory of the pool stays mapped
    meanwhile, freed or not. A recording that fails leaves no memory behind."""
    device.refuse_in_capture("beginning a capture inside a capture")
    recorder = device.recorder = Recorder(record, pool)
    device.memory.pin(pool)
    failed = True
    try:
        yield recorder
        failed = recorder.invalid is not None
    finally:
        device.recorder = None
        device.memory.pin(pool, -1)
        for block in recorder.allocated if failed else []:
            if not block.free and block in block.segment.blocks:
                device.memory.free(block)


Captured = TypeVar("Captured", Graph, BreakableGraph)


@contextmanager
def capturing(device: Device, graph: Captured) -> Iterator[Captured]:
    """Record the launches of the body into `graph`, and instantiate it."""
    spec = device.spec

    def record(node: Node) -> None:
        device.host_work(f"capture {node.label}", spec.cpu_op_us + spec.capture_node_us)
        graph.append(node)

    try:
        with recording(device, graph.pool, record) as recorder:
            yield graph
        if recorder.invalid:
            raise CaptureError(f"{graph.name} was invalidated while capturing: {recorder.invalid}")
    except BaseException:
        for failed in graph.graphs:
            failed.nodes, failed.state = [], "invalid"
        raise
    for recorded in graph.graphs:
        recorded.instantiate()
