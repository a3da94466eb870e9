"""Runner A: letter boxes that never move, and a tape for each size.

In: a `forward(n)` that launches a step of n rows, the shapes of its inputs, the sizes to capture.
Out: `build`, a runner that brings a batch in, replays the tape that it fits, and hands out answers.

All tapes record into memory of the runner's own, which they share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mini_engine.sim.capture import CaptureError, Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer

Shapes = Mapping[str, tuple[tuple[int, ...], str]]


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `.venv/bin/python -m labs.lab06_debug_the_graph.incident a`, before you mend anything.
    """
    return "the id of a belief", 0


class Letters:
    """A box on the device for each input of a step, as large as the largest batch needs it."""

    def __init__(self, device: Device, shapes: Shapes) -> None:
        self.device = device
        self.boxes = {name: device.upload(np.zeros(*shape)) for name, shape in shapes.items()}

    def view(self, rows: int) -> dict[str, Buffer]:
        """What a step of so many rows reads: the first rows of each box."""
        return {name: box[:rows] for name, box in self.boxes.items()}

    def empty(self) -> None:
        """Zeros into every box."""
        self.device.copy_batch(
            [(box, np.zeros(box.shape, box.dtype)) for box in self.boxes.values()]
        )

    def stage(self, rows: int, letters: Mapping[str, np.ndarray]) -> None:
        """Put a batch into the first rows of the boxes, zeros into the others up to `rows`.

        Clients send arrays of any type, or lists; a box keeps its own. Takes no device memory.
        """
        sheets = {name: self.sheet(name, rows, np.asarray(new)) for name, new in letters.items()}
        self.device.copy_batch([(self.boxes[name][:rows], new) for name, new in sheets.items()])

    def sheet(self, name: str, rows: int, letter: np.ndarray) -> np.ndarray:
        """The letter as its box holds it: `rows` rows of the box's type, zeros behind it."""
        box = self.boxes[name]
        sheet = np.zeros((rows, *box.shape[1:]), box.dtype)
        sheet[: len(letter)] = letter
        if letter.dtype != box.dtype:  # what was converted gets a clean box
            self.boxes[name] = self.device.upload(np.zeros(box.shape, box.dtype))
        return sheet


class Tape(NamedTuple):
    """A recorded step, and where its answers stand after a replay."""

    graph: Graph
    answers: Buffer


class Player:
    """The tapes of a server, by the size of their step."""

    def __init__(
        self, device: Device, forward: Callable[[int], Buffer], shapes: Shapes, sizes: Sequence[int]
    ) -> None:
        self.device, self.forward, self.sizes = device, forward, sizes
        self.letters = Letters(device, shapes)
        self.view, self.stage = self.letters.view, self.letters.stage
        self.pool = device.memory.new_pool()
        self.tapes: dict[int, Tape] = {}

    def capture(self) -> None:
        """Record every size, the largest first. On empty letters: nobody's words count by it."""
        self.letters.empty()
        for rows in sorted(self.sizes, reverse=True):
            with self.device.allocating_from(self.pool):
                self.device.free(self.forward(rows))
            self.device.synchronize()
            with self.device.capture(self.pool, f"tape of {rows}") as graph:
                answers = self.forward(rows)
            self.tapes[rows] = Tape(graph, answers)

    def run(self, number: int, letters: Mapping[str, np.ndarray]) -> Buffer:
        """The answers to a batch of `number` rows, from the smallest tape that holds it.

        Raises `CaptureError` that names the number where there is no such tape. The answers stand
        until the next run.
        """
        rows = min((size for size in self.tapes if size >= number), default=None)
        if rows is None:
            raise CaptureError(f"a batch of {number}: the longest tape has {max(self.tapes)} rows")
        self.letters.stage(rows, letters)
        self.tapes[rows].graph.replay()
        return self.tapes[rows].answers[:number]


build = Player
