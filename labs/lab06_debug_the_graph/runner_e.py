"""Runner E: graphs with live launches between them, numbered by the graph that they come after.

In: a `forward(n)` that launches a step of n rows, the shapes of its inputs, the sizes to capture,
and the names of the ops that are `live`: launched at every step, because their work depends on the
batch. Out: `build`, a runner whose replays are pieces. Without live ops a replay is one graph.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np

from mini_engine.sim.capture import CaptureError, Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer, Node


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `.venv/bin/python -m labs.lab06_debug_the_graph.incident e`, before you mend anything.
    """
    return "the id of a belief", 0


@dataclass
class Score:
    """A step in order: what is live after 0 graphs, graph 1, what is live after 1 graph …"""

    answers: Buffer
    graphs: list[Graph] = field(default_factory=list)
    live: dict[int, Node] = field(default_factory=dict)  # by the number of graphs before it


class Conductor:
    """Records a score for each size, and performs it."""

    def __init__(
        self, device: Device, forward: Callable[[int], Buffer],
        shapes: Mapping[str, tuple[tuple[int, ...], str]], sizes: Sequence[int],
        live: Collection[str] = (),
    ) -> None:  # fmt: skip
        self.device, self.forward, self.live = device, forward, frozenset(live)
        self.desks = {name: device.upload(np.zeros(*shape)) for name, shape in shapes.items()}
        self.hall = device.memory.new_pool()  # of all scores
        self.scores: dict[int, Score | None] = dict.fromkeys(sorted(sizes))

    def view(self, rows: int) -> dict[str, Buffer]:
        """What a step of so many rows reads."""
        return {name: desk[:rows] for name, desk in self.desks.items()}

    def stage(self, rows: int, parts: Mapping[str, np.ndarray]) -> None:
        """A batch to the first rows of the desks, zeros to the others up to `rows`."""
        sheets = []
        for name, desk in self.view(rows).items():
            new = np.asarray(parts[name], desk.dtype)
            rests = np.zeros((rows - len(new), *desk.shape[1:]), desk.dtype)
            sheets.append((desk, np.concatenate([new, rests])))
        self.device.copy_batch(sheets)

    def capture(self) -> None:
        """A score for every size, the largest first, after a step on zeros that nobody hears."""
        nobody = {name: np.zeros((0, *desk.shape[1:])) for name, desk in self.desks.items()}
        for rows in sorted(self.scores, reverse=True):
            self.stage(rows, nobody)
            with self.device.allocating_from(self.hall):
                self.device.free(self.forward(rows))
            self.device.synchronize()
            self.scores[rows] = self.written(rows)

    def written(self, rows: int) -> Score:
        """List the launches of a step; graph those that are not live, in the order of the list.

        Every launch of the list runs once in a performance. Nothing runs here.
        """
        with self.device.trace(self.hall) as launches:
            score = Score(self.forward(rows))
        for live, group in groupby(launches, key=lambda launch: launch.label in self.live):
            if live:
                score.live.update((len(score.graphs), launch) for launch in group)
            else:
                score.graphs.append(self.movement(group, f"{len(score.graphs)} of {rows}"))
        return score

    def movement(self, launches: Iterable[Node], name: str) -> Graph:
        """A graph of these launches, which are not run."""
        with self.device.capture(self.hall, f"movement {name}") as graph:
            for launch in launches:
                self.device.submit(launch)
        return graph

    def perform(self, score: Score) -> None:
        """Graphs and live launches, in the order of the score."""
        for number, graph in enumerate([*score.graphs, None]):
            if number in score.live:
                self.device.submit(score.live[number])
            if graph is not None:
                graph.replay()

    def run(self, rows: int, parts: Mapping[str, np.ndarray]) -> Buffer:
        """Perform the smallest score with so many rows. Their answers stand until the next run.

        Raises `CaptureError`, naming the rows, where there is none.
        """
        for size, score in self.scores.items():
            if score is not None and size >= rows:
                self.stage(size, parts)
                self.perform(score)
                return score.answers[:rows]
        raise CaptureError(f"{rows} rows, and scores for {list(self.scores)}")


build = Conductor
