"""The two clocks of a device, and the queue between them.

The CPU runs ahead of the GPU. A kernel starts once it has arrived, and once the kernel before it
has ended and the gap between kernels is over: start = max(cpu, gpu + gap). While `queue_depth`
submissions have not ended, the CPU waits with the next one."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.cards import DeviceSpec


@dataclass
class Counters:
    """What a device has done so far. Times in µs."""

    launches: int = 0  # calls into the driver that submit work: kernels, graphs, copies
    kernels: int = 0  # kernels that ran on the GPU, graph nodes included
    graphs: int = 0  # graph launches
    cpu_us: float = 0.0  # CPU at work, without waits
    gpu_us: float = 0.0  # GPU at work, without gaps
    bytes: float = 0.0  # moved by kernels

    def copy(self) -> Counters:
        return Counters(**vars(self))

    def since(self, earlier: Counters) -> Counters:
        return Counters(**{k: v - getattr(earlier, k) for k, v in vars(self).items()})


class Clocks:
    def __init__(self, spec: DeviceSpec, *, record: bool) -> None:
        self.spec = spec
        self.cpu_us = 0.0  # now, on the CPU's clock, since the device was made
        self.gpu_us = 0.0  # when the GPU will have done all that was issued
        self.counters = Counters()
        self.recording = record
        self.timeline: list[TraceEvent] = []  # every event so far, while recording
        self._ends: deque[float] = deque()  # when each submission will have run

    def cpu(self, name: str, duration_us: float, category: str) -> None:
        self._event(CPU, name, self.cpu_us, duration_us, category)
        self.cpu_us += duration_us
        if category != "wait":
            self.counters.cpu_us += duration_us

    def host_work(self, name: str, duration_us: float) -> None:
        """CPU time that is not a launch: scheduling, preparing inputs, capturing."""
        if duration_us > 0:
            self.cpu(name, duration_us, "host")

    def issue(
        self, name: str, cpu_us: float, kind: str, works: Iterable[tuple[str, float]]
    ) -> None:
        """The CPU issues one submission, once the queue has room: a launch, a graph or a copy.
        `works` are what the GPU does for it, in order: a name, and how long it takes. `kind` says
        what they are: "kernel", "node" (of a graph) or "copy"."""
        ends = self._ends
        while ends and ends[0] <= self.cpu_us:
            ends.popleft()
        if len(ends) >= self.spec.queue_depth:
            self.wait_until(ends.popleft(), "queue full")
        self.counters.launches += 1
        self.counters.graphs += kind == "node"
        self.cpu(name, cpu_us, {"kernel": "launch", "node": "graph", "copy": "copy"}[kind])
        gap_us = self.spec.stream_gap_us
        for work, duration_us in works:
            self.gpu(work, gap_us, duration_us, kind)
            gap_us = self.spec.graph_gap_us
        ends.append(self.gpu_us)

    def host_copy(self) -> None:
        """One copy from the host, which is small: on the GPU only its floor counts."""
        name = "copy to device"
        self.issue(name, self.spec.copy_us, "copy", [(name, self.spec.kernel_floor_us)])

    def gpu(self, name: str, gap_us: float, duration_us: float, category: str) -> None:
        start = max(self.cpu_us, self.gpu_us + gap_us)
        self._event(GPU, name, start, duration_us, category)
        self.gpu_us = start + duration_us
        self.counters.gpu_us += duration_us
        self.counters.kernels += category != "copy"

    def wait_until(self, at_us: float, why: str = "idle") -> None:
        if at_us > self.cpu_us:
            self.cpu(why, at_us - self.cpu_us, "wait")

    def drain(self) -> None:
        """The CPU waits until the GPU has done everything, and pays for noticing."""
        self.wait_until(self.gpu_us, "wait for the GPU")
        self.cpu("synchronize", self.spec.sync_us, "wait")
        self._ends.clear()

    def _event(self, lane: str, name: str, start: float, duration: float, category: str) -> None:
        if self.recording:
            self.timeline.append(TraceEvent(lane, name, start, duration, category))
