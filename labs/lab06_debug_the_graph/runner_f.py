"""Runner F: lends its memory to whoever is careful with it, which graphs are.

In: a `forward(n)` that launches a step of n rows, the shapes of its inputs, the sizes to capture,
and the names of the ops that are `live`, if some are: then a step is graphs with launches between.
Out: `build`, a runner that owns its memory: inputs, answers and all that a replay writes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from mini_engine.sim.capture import BreakableGraph, CaptureError, Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `.venv/bin/python -m labs.lab06_debug_the_graph.incident f`, before you mend anything.
    """
    return "the id of a belief", 0


class Landlord:
    """Owns a pool of device memory, and a graph with its answers for every size."""

    def __init__(
        self, device: Device, forward: Callable[[int], Buffer],
        shapes: Mapping[str, tuple[tuple[int, ...], str]], sizes: Sequence[int],
        live: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.device, self.forward, self.live = device, forward, tuple(live)
        self.estate = device.memory.new_pool()
        with device.allocating_from(self.estate):
            self.rooms = {name: device.upload(np.zeros(*shape)) for name, shape in shapes.items()}
        self.leases: list[tuple[int, Graph | BreakableGraph | None, Buffer | None]]
        self.leases = [(rows, None, None) for rows in sorted(sizes)]

    def view(self, rows: int) -> dict[str, Buffer]:
        """What a step of so many rows reads."""
        return {name: room[:rows] for name, room in self.rooms.items()}

    def stage(self, rows: int, guests: Mapping[str, np.ndarray]) -> None:
        """Zeros into the first `rows` rows of every room, and a batch over them, in one call."""
        moved = []
        for name, room in self.view(rows).items():
            beds = np.zeros(room.shape, room.dtype)
            beds[: len(guests[name])] = guests[name]
            moved.append((room, beds))
        self.device.copy_batch(moved)

    def clear(self) -> None:
        """Zeros into every room."""
        rooms = self.rooms.values()
        self.device.copy_batch([(room, np.zeros(room.shape, room.dtype)) for room in rooms])

    def capture(self) -> None:
        """Capture every size, the largest first, in memory that is the runner's and nobody else's.

        A step before it, on zeros, lets the kernels settle; it is waited for.
        """
        for at, (rows, _, _) in reversed(list(enumerate(self.leases))):
            self.clear()
            settled = self.forward(rows)
            self.device.free(settled)
            self.device.synchronize()
            self.leases[at] = rows, *self.signed(rows, settled.block.pool)

    def signed(self, rows: int, memory: int) -> tuple[Graph | BreakableGraph, Buffer]:
        """Record one step of so many rows in this pool. Nothing runs."""
        if self.live:
            pieces = self.device.capture_breakable(self.live, memory, f"pieces of {rows}")
            with pieces as broken:
                answers = self.forward(rows)
            return broken, answers
        with self.device.capture(memory, f"lease of {rows}") as whole:
            answers = self.forward(rows)
        return whole, answers

    def run(self, number: int, guests: Mapping[str, np.ndarray]) -> Buffer:
        """Replay the smallest graph with room for so many; their answers, until the next run.

        Raises `CaptureError`, naming the number, where the house is too small.
        """
        for rows, graph, answers in self.leases:
            if rows >= number and graph is not None and answers is not None:
                self.stage(rows, guests)
                graph.replay()
                return answers[:number]
        raise CaptureError(f"{number} guests in a house for {self.leases[-1][0]}")


build = Landlord
