"""Another right way: one record a rung in a sorted list; all warm-ups before all captures.

The batch is staged by the inputs, which get a method for it, through host arrays that are kept.
"""

from bisect import bisect_left
from dataclasses import dataclass


@dataclass
class Captured:
    """One rung: what replays, what it writes, and what both took."""

    graph: object
    output: object
    spent_us: float
    grown_bytes: int


class StaticInputs:
    def stage_rows(self, rows, arrays):
        copies = []
        for name, target in self.view(rows).items():
            host = np.resize(np.zeros(1, target.dtype), target.shape)
            host[: len(arrays[name])] = arrays[name]
            copies += [(target, host)]
        self.device.copy_batch(copies)


class GraphRunner:
    def __init__(self, device, forward, inputs, sizes, *, share_pool=True, pool=None):
        self.ladder = CaptureLadder(sizes)
        self.device = device
        self.inputs = inputs
        self.forward = forward
        self._one_pool = share_pool
        self._rungs = []  # rising
        self._records = []  # of these
        self.pool = pool if pool is not None else device.memory.new_pool()

    @property
    def graphs(self):
        return {r: record.graph for r, record in zip(self._rungs, self._records, strict=True)}

    def capture(self, order=None):
        self._rungs, self._records = [], []
        self._taken = {}
        if self._one_pool:
            for rung in sorted(self.ladder, reverse=True):
                self._warm(rung)
        return capture_ladder(self.ladder, self._capture_one, order)

    def run(self, num_rows, arrays):
        return self.run_at(rung=self.rung_for(num_rows=num_rows), arrays=arrays, num_rows=num_rows)

    def rung_for(self, num_rows):
        at = bisect_left(self._rungs, num_rows)
        if at == len(self._rungs):
            raise CaptureError(f"{self._rungs} are captured: too few rows for {num_rows}")
        return self._rungs[at]

    def run_at(self, rung, num_rows, arrays):
        record = self._records[self._rungs.index(rung)]
        self.inputs.stage_rows(rung, arrays)
        record.graph.replay()
        rows = len(record.output)
        if num_rows < rows:
            rows = num_rows
        return record.output[0:rows]

    def _record(self, rung):
        output = None
        with self.device.capture(name=f"rung-{rung}", pool=self.pool) as graph:
            output = self.forward(rung)
        return (graph, output)

    def _warm(self, rung):
        """A warm-up that finds no memory leaves none behind: its capture will say so again."""
        before_us, before = self.device.cpu_us, self.device.memory.reserved_bytes(self.pool)
        self.inputs.clear()
        try:
            with self.device.allocating_from(self.pool):
                output = self.forward(rung)
            self.device.free(output)
        except MemoryError:
            pass
        self.device.synchronize()
        grown = self.device.memory.reserved_bytes(self.pool) - before
        self._taken[rung] = self.device.cpu_us - before_us, grown

    def _capture_one(self, rung):
        if not self._one_pool:
            self.pool = self.device.memory.new_pool()
            self._warm(rung)
        took_us, grew = self._taken[rung]
        before_us, before = self.device.cpu_us, self.device.memory.reserved_bytes(self.pool)
        graph, output = self._record(rung)
        took_us += self.device.cpu_us - before_us
        grew += self.device.memory.reserved_bytes(self.pool) - before
        at = bisect_left(self._rungs, rung)
        self._rungs.insert(at, rung)
        self._records.insert(at, Captured(graph, output, took_us, grew))
        return RungReport(rung, len(graph.graphs), took_us, grew, graph.driver_bytes)
