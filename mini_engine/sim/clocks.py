"""The two clocks of a device, and the queue between them.

In: CPU work and GPU work as they are submitted. Out: when each began and ended.

The CPU runs ahead of the GPU. A kernel starts once it has arrived, and once the kernel before it
has ended and the gap between kernels is over:

    start = max(cpu, gpu + gap)

While `queue_depth` submissions have not ended, the CPU waits with the next one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from mini_engine.sim.trace import CPU, GPU, TraceEvent


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
        """What was done between `earlier` and now."""
        return Counters(**{k: v - getattr(earlier, k) for k, v in vars(self).items()})


class Clocks:
    """The time on the CPU's and on the GPU's clock, in µs since the device was made."""

    def __init__(self, queue_depth: int, *, record: bool) -> None:
        self.cpu_us = self.gpu_us = 0.0
        self.counters = Counters()
        self.timeline: list[TraceEvent] | None = [] if record else None
        self._queue_depth = queue_depth
        self._ends: deque[float] = deque()  # when each submission will have run

    @contextmanager
    def recorded(self) -> Iterator[list[TraceEvent]]:
        """The events of the body, complete at its end; time 0 is its beginning."""
        events: list[TraceEvent] = []
        before, began_us, self.timeline = self.timeline, self.cpu_us, events
        yield events
        self.timeline = before
        events[:] = [replace(event, start_us=event.start_us - began_us) for event in events]

    def cpu(self, name: str, duration_us: float, category: str) -> None:
        """The CPU works for `duration_us`."""
        self._event(CPU, name, self.cpu_us, duration_us, category)
        self.cpu_us += duration_us
        if category != "wait":
            self.counters.cpu_us += duration_us

    def submit(self, name: str, duration_us: float, category: str) -> None:
        """The CPU submits work, for `duration_us`, once the queue has room."""
        ends = self._ends
        while ends and ends[0] <= self.cpu_us:
            ends.popleft()
        if len(ends) >= self._queue_depth:
            self.wait_until(ends.popleft(), "queue full")
        self.counters.launches += 1
        self.cpu(name, duration_us, category)

    def gpu(self, name: str, gap_us: float, duration_us: float, category: str) -> None:
        """The GPU works for `duration_us` on what was submitted last."""
        start = max(self.cpu_us, self.gpu_us + gap_us)
        self._event(GPU, name, start, duration_us, category)
        self.gpu_us = start + duration_us
        self.counters.gpu_us += duration_us
        self.counters.kernels += category != "copy"

    def submitted(self) -> None:
        """The submission ends when the GPU has done its last work."""
        self._ends.append(self.gpu_us)

    def wait_until(self, at_us: float, why: str) -> None:
        """The CPU waits, unless that time has passed already."""
        if at_us > self.cpu_us:
            self.cpu(why, at_us - self.cpu_us, "wait")

    def drain(self, sync_us: float) -> None:
        """The CPU waits until the GPU has done everything, and pays for noticing."""
        self.wait_until(self.gpu_us, "wait for the GPU")
        self.cpu("synchronize", sync_us, "wait")
        self._ends.clear()

    def _event(self, lane: str, name: str, start: float, duration: float, category: str) -> None:
        if self.timeline is not None:
            self.timeline.append(TraceEvent(lane, name, start, duration, category))
