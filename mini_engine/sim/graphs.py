"""Graph runners: one captured graph for each rung, padded batches, static input buffers.

inputs = StaticInputs(device, {"x": ((8, width), "float32")})
runner = GraphRunner(device, forward, inputs, [1, 2, 4, 8])
runner.capture()                       # largest rung first, all in one pool
y = runner.run(3, {"x": rows})         # rung 4: pad, copy in, replay, slice out"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mini_engine.dispatch.capture_report import CaptureReport, RungReport
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.sim.capture import CaptureError, Graph, PiecewiseGraph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.sim.memory import capture_ladder

Forward = Callable[[int], Buffer]


class StaticInputs:
    """Buffers whose addresses never change; each step's values are copied into them. `shapes` gives
    each input the shape of the largest batch and a dtype. They start as zeros, and zero is what a
    padded row reads (engine/blocks.py says where it may write)."""

    def __init__(self, device: Device, shapes: Mapping[str, tuple[tuple[int, ...], str]]) -> None:
        self.device = device
        self.buffers = {name: device.empty(shape, dtype) for name, (shape, dtype) in shapes.items()}
        self.clear()

    def view(self, rows: int) -> dict[str, Buffer]:
        """What a forward of `rows` rows reads: the first rows of each buffer, so that every rung
        reads the same addresses."""
        return {name: buffer[:rows] for name, buffer in self.buffers.items()}

    def clear(self) -> None:
        self.device.copy_batch([(b, np.zeros(b.shape, b.dtype)) for b in self.buffers.values()])

    def stage(self, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
        """Copy the batch in, padded with zeros up to `rows`, in one call. `arrays` has the batch's
        own rows for each name in `view(rows)`, perhaps fewer than the view has, and not equally
        many for all. The view's other rows become zeros; what lies behind the view stays as it is.
        """
        copies = []
        for name, buffer in self.view(rows).items():
            padded = np.zeros(buffer.shape, buffer.dtype)
            padded[: len(arrays[name])] = arrays[name]
            copies.append((buffer, padded))
        self.device.copy_batch(copies)


class GraphRunner:
    """One graph for each rung, captured up front and replayed for every batch.

    A forward may change what outlives it, such as a KV cache. So no batch is computed twice, and
    rows that belong to no request start from zeros, and nobody reads what becomes of them.

    * Before a rung is captured, its forward runs once eagerly, a *warm-up*, since a capture does
      not permit what a first call does. It is a real step, so it runs when all inputs are zeros.
      Its memory comes from `pool`. When the capture begins, its output has been freed, and the GPU
      has done all of it.
    * A capture runs the forward once more and executes nothing.
    * A step copies the batch to where the graph reads, all inputs in one call, and launches one
      graph: one copy, one launch. It waits for nothing, takes no memory of the device, and neither
      calls the forward nor clears the inputs. What the graph reads and the batch does not fill is
      zeros; buffers are not touched beyond what the graph of this rung reads (`inputs.view`).

    Others read `device`, `forward`, `inputs`, `ladder` (a `CaptureLadder`), `pool`, and `graphs`:
    each captured rung -> its graph."""

    def __init__(
        self, device: Device, forward: Forward, inputs: StaticInputs, sizes: Sequence[int], *,
        share_pool: bool = True, pool: int | None = None,
    ) -> None:  # fmt: skip
        """`forward(n)` reads `inputs.view(n)` and returns its output, n rows or fewer. `sizes` are
        the rungs, checked by `CaptureLadder`. All graphs share one new pool, or `pool`, which other
        graphs use already. `share_pool=False` gives every rung a new pool of its own, to show in a
        lesson what that costs; `pool` is then the last one. Captures nothing yet."""
        self.device, self.forward, self.inputs = device, forward, inputs
        self.ladder = CaptureLadder(sizes)
        self.share_pool = share_pool
        self.pool = device.memory.new_pool() if pool is None else pool
        self.graphs: dict[int, Graph | PiecewiseGraph] = {}
        self.outputs: dict[int, Buffer] = {}

    def capture(self, order: Sequence[int] | None = None) -> CaptureReport:
        """Warm up and capture every rung, in the order of `capture_ladder`, which gets `order`.
        Returns its report, with a `RungReport` of each captured rung. A rung that finds no memory
        (`DeviceOutOfMemory`) is dropped; any other error is passed on. May be called again: then
        `graphs` has the new graphs, and no old one, not even that of a rung that is now dropped."""
        self.graphs, self.outputs = {}, {}
        return capture_ladder(self.ladder.sizes, self._capture_rung, order)

    def run(self, num_rows: int, arrays: Mapping[str, np.ndarray]) -> Buffer:
        return self.run_at(self.rung_for(num_rows), num_rows, arrays)

    def rung_for(self, num_rows: int) -> int:
        """The smallest captured rung that holds `num_rows` rows. Not every rung of the ladder was
        captured. Raises `CaptureError` where no captured rung fits, naming the number of rows and
        the largest captured rung, if there is one."""
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None:
            raise CaptureError(
                f"a batch of {num_rows} fits no captured rung of {sorted(self.graphs)}: "
                "run it eagerly, or capture larger sizes"
            )
        return rung

    def run_at(self, rung: int, num_rows: int, arrays: Mapping[str, np.ndarray]) -> Buffer:
        """One step at a captured `rung`: the output's first `num_rows` rows.

        `arrays` has the batch's own rows for each name in `inputs.view(rung)`, perhaps fewer than
        that view has, and not equally many for all: in the engine (`ModelInputs`) some inputs have
        a row for each token, others one for each request. They are only read.

        A forward may give fewer rows than the batch has; then all of them are returned. They are
        not copied: they stand in the graph's memory, which the next replay overwrites."""
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]

    def _capture_rung(self, rung: int) -> RungReport:
        device, memory = self.device, self.device.memory
        if not self.share_pool:
            self.pool = memory.new_pool()
        began, reserved = device.cpu_us, memory.reserved_bytes(self.pool)
        self._warm_up(rung)
        graph, output = self._record(rung)
        self.graphs[rung], self.outputs[rung] = graph, output
        grown = memory.reserved_bytes(self.pool) - reserved
        took_us, driver = device.cpu_us - began, graph.driver_bytes
        return RungReport(rung, len(graph.graphs), took_us, grown, driver)

    def _warm_up(self, rung: int) -> None:
        """Run once eagerly, on null inputs, in the graphs' pool, since no replay is under way."""
        self.inputs.clear()
        with self.device.allocating_from(self.pool):
            self.device.free(self.forward(rung))
        self.device.synchronize()

    def _record(self, rung: int) -> tuple[Graph | PiecewiseGraph, Buffer]:
        """Capture one forward of `rung` rows in `pool`, under a name that has the rung in it.
        Returns the graph and the buffer that its replays write, which holds garbage until the first
        of them. `capture` calls it once for each rung, after the warm-up: a subclass that captures
        in another way (`PiecewiseGraphRunner`) replaces this method and nothing else."""
        with self.device.capture(self.pool, f"graph of {rung}") as graph:
            output = self.forward(rung)
        return graph, output
