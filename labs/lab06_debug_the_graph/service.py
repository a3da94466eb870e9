"""The service that had the incidents: a toy small enough that every answer is known without a GPU.

In: a module with a runner, yours or the engine's, and what users say. Out: what they are answered.

    service = Service(runner_a)
    service.step({3: 5.0})     # the user who owns slot 3 says 5: {3: 50.0}
    service.step({3: 1.0})     # half of 5, and 1: {3: 35.0}

Each user owns a slot of a cache on the simulated device, as a request owns its blocks. A step
halves what the slot holds, adds what the user said and answers ten times that. Slot 0 is nobody's.
`service.expected(said)` computes the same on the host, without device, graph or padding.

A runner of any make will do. Its module has `build(device, forward, shapes, sizes)`, which takes
`live`, too, if it can run in pieces, and returns an object with

    view(rows)               what `forward(rows)` reads: a buffer for each input
    stage(rows, arrays)      brings a batch in, padded with zeros to so many rows
    capture()                makes the graphs, at any time
    run(number, arrays)      the answers to a batch: a buffer of `number` rows

or the engine's three classes: `StaticInputs`, `GraphRunner`, `PiecewiseGraphRunner`. Every runner
promises that

* each of the sizes that it was given gets a graph, the largest first, all in one pool of memory
  from which nobody else is served; a second capture makes them anew, in the same pool;
* the sizes may be given in any order (the engine's own refuses all but a rising one);
* before each capture of a size each kernel has run on zeros, with memory that is given back, and
  the GPU has been waited for; a capture changes no user's slot, also not the second one;
* a batch is copied in from the host, filled up with rows of zeros, and is one replay of the
  smallest graph that holds it; no other kernel is launched for it, and it takes no memory;
* a batch that is only staged, for a step without a graph, is brought in by the same rules;
* a batch above the largest size is a `CaptureError` that names the number of its rows;
* in pieces, every live op is launched once a step, in its place, and all others are in graphs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import ModuleType

import numpy as np

from labs.support.inputs import frozen
from mini_engine.sim.device import Device
from mini_engine.sim.kernels import scale
from mini_engine.sim.launch import Buffer, kernel
from mini_engine.step.cards import load_spec

SLOTS, WIDTH = 24, 4
OPS = ["scale", "forget", "remember", "recall", "scale"]  # what a step launches


@kernel()
def forget(cache: np.ndarray, slots: np.ndarray) -> None:
    """cache[slots] /= 2. cache (SLOTS, WIDTH), slots (rows,) int32."""
    cache[slots] *= np.float32(0.5)


@kernel()
def remember(cache: np.ndarray, x: np.ndarray, slots: np.ndarray) -> None:
    """cache[slots] += x. x (rows, WIDTH)."""
    cache[slots] += x


@kernel()
def recall(out: np.ndarray, cache: np.ndarray, slots: np.ndarray) -> None:
    """out = cache[slots]. out (rows, WIDTH)."""
    out[...] = cache[slots]


class Service:
    """Users, their slots, one device and one runner."""

    def __init__(
        self,
        graphs: ModuleType,
        sizes: Sequence[int] = (1, 2, 4, 8),
        *,
        live: Sequence[str] = (),
        capture: bool = True,
        settling: bool = False,
        device: Device | None = None,
    ) -> None:
        """`live` names ops that resist capture: then the graphs are pieces.

        `settling`: some kernels wait for the GPU the first time that they run with so many rows.
        `device`: another one than a simulated H200 with a timeline.
        """
        self.device = device or Device(load_spec("h200"), memory_bytes=2**26, record=True)
        self.cache = self.device.upload(np.zeros((SLOTS, WIDTH), np.float32))
        self.memory = np.zeros(SLOTS, np.float32)  # what the cache should hold
        top = max(sizes)
        shapes = {"x": ((top, WIDTH), "float32"), "slots": ((top,), "int32")}
        self.settled: set[int] | None = set() if settling else None
        more = {"live": tuple(live)} if live else {}
        if hasattr(graphs, "build"):
            self.inputs = self.runner = graphs.build(
                self.device, self.forward, shapes, tuple(sizes), **more
            )
        else:
            self.inputs = graphs.StaticInputs(self.device, shapes)
            make = graphs.PiecewiseGraphRunner if live else graphs.GraphRunner
            self.runner = make(self.device, self.forward, self.inputs, sizes, *more.values())
        if capture:
            self.runner.capture()

    def forward(self, rows: int) -> Buffer:
        """The launches of one step of so many rows. Returns the answers, (rows, WIDTH)."""
        if self.settled is not None and rows not in self.settled:
            self.device.synchronize()  # as an autotuner does, to read its stopwatch
            self.settled.add(rows)
        device, view = self.device, self.inputs.view(rows)
        out = device.empty((rows, WIDTH))
        with device.scratch() as scratch:
            said, held = scratch.empty(rows, WIDTH), scratch.empty(rows, WIDTH)
            device.launch(scale, said, view["x"], by=1.0)
            device.launch(forget, self.cache, view["slots"])
            device.launch(remember, self.cache, said, view["slots"])
            device.launch(recall, held, self.cache, view["slots"])
            device.launch(scale, out, held, by=10.0)
        return out

    def step(
        self, said: Mapping[int, float], kind: object = "float32", slots: object = "int32"
    ) -> dict[int, float]:
        """One step through the runner. `said`: slot of a user -> number; answers by slot.

        `kind` and `slots` are the types in which the client sends its numbers and its slots; `list`
        for a Python list.
        """
        return self._answers(said, self.runner.run(len(said), self._arrays(said, kind, slots)))

    def eager_step(self, said: Mapping[int, float]) -> dict[int, float]:
        """The same without a graph."""
        self.inputs.stage(len(said), self._arrays(said, "float32"))
        return self._answers(said, self.forward(len(said)))

    def expected(self, said: Mapping[int, float]) -> dict[int, float]:
        """What the same step answers, computed on the host. Keeps count: ask once for each step."""
        for slot, number in said.items():
            self.memory[slot] = self.memory[slot] / 2 + np.float32(number)
        return {slot: float(10 * self.memory[slot]) for slot in said}

    def _arrays(
        self, said: Mapping[int, float], kind: object, slots: object = "int32"
    ) -> dict[str, object]:
        rows = [[number] * WIDTH for number in said.values()]
        return {"x": _as(rows, kind), "slots": _as(list(said), slots)}

    def _answers(self, said: Mapping[int, float], answers: Buffer) -> dict[int, float]:
        found = self.device.read(answers)
        assert found.shape == (len(said), WIDTH), f"answers of {found.shape} for {len(said)} users"
        return {slot: float(row[0]) for slot, row in zip(said, found, strict=True)}


def _as(values: list, kind: object) -> object:
    """A list, or a read-only array: a runner that writes into a client's memory is told so."""
    return values if kind is list else frozen(np.array(values).astype(str(kind)))
