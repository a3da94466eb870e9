"""Runner C: functions around one record of state, as small servers are often written.

In: a `forward(n)` that launches a step of n rows, the shapes of its inputs, the sizes to capture.
Out: `build(device, forward, shapes, sizes)`, an object with `view`, `stage`, `capture` and `run`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from mini_engine.sim.capture import CaptureError, Graph
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer


def diagnosis() -> tuple[str, int]:
    """What the author believed, and the first line of the log that a right runner had not caused.

    Both from `.venv/bin/python -m labs.lab06_debug_the_graph.incident c`, before you mend anything.
    """
    return "the id of a belief", 0


@dataclass
class State:
    """What the functions below share."""

    device: Device
    forward: Callable[[int], Buffer]
    inputs: dict[str, Buffer]  # as many rows as the largest size
    sizes: tuple[int, ...]  # falling: the largest is captured first
    pool: int
    graphs: dict[int, tuple[Graph, Buffer]] = field(default_factory=dict)  # size -> and its output


def prepare(
    device: Device, forward: Callable[[int], Buffer],
    shapes: Mapping[str, tuple[tuple[int, ...], str]], sizes: Sequence[int],
) -> State:  # fmt: skip
    """Put the inputs on the device and decide what to capture: every size that was asked for."""
    inputs = {name: device.empty(*shape) for name, shape in shapes.items()}
    tiles = [size for size in sizes if size <= 8 or size % 8 == 0]
    ladder = tuple(sorted(tiles, reverse=True))
    return State(device, forward, inputs, ladder, device.memory.new_pool())


def view(state: State, rows: int) -> dict[str, Buffer]:
    """What a step of so many rows reads."""
    return {name: buffer[:rows] for name, buffer in state.inputs.items()}


def stage(state: State, rows: int, arrays: Mapping[str, np.ndarray]) -> None:
    """Copy a batch into the inputs, filled up with zeros to `rows` rows."""
    copies = []
    for name, buffer in view(state, rows).items():
        missing = [(0, rows - len(arrays[name]))] + [(0, 0)] * (len(buffer.shape) - 1)
        copies.append((buffer, np.pad(np.asarray(arrays[name], buffer.dtype), missing)))
    state.device.copy_batch(copies)


def capture(state: State) -> None:
    """Capture every size, after a first run on zeros that is waited for and given back."""
    device = state.device
    for size in state.sizes:
        stage(state, size, {name: np.zeros((0, *b.shape[1:])) for name, b in state.inputs.items()})
        with device.allocating_from(state.pool):
            device.free(state.forward(size))
        device.synchronize()
        with device.capture(state.pool, f"graph for {size}") as graph:
            output = state.forward(size)
        state.graphs[size] = graph, output


def fitting(state: State, rows: int) -> int:
    """The smallest captured size that holds so many rows.

    Raises `CaptureError` where none does, naming the rows and the largest size.
    """
    return next(size for size in sorted(state.graphs) if size >= rows)


def run(state: State, rows: int, arrays: Mapping[str, np.ndarray]) -> Buffer:
    """The output of a batch of so many rows, which the next run overwrites.

    Raises `CaptureError` before the first capture.
    """
    if not state.graphs:
        raise CaptureError(f"{rows} rows, and nothing is captured: capture first")
    size = fitting(state, rows)
    graph, output = state.graphs[size]
    stage(state, size, arrays)
    graph.replay()
    return output[:rows]


def build(
    device: Device, forward: Callable[[int], Buffer],
    shapes: Mapping[str, tuple[tuple[int, ...], str]], sizes: Sequence[int],
) -> SimpleNamespace:  # fmt: skip
    """The functions, bound to one state."""
    state = prepare(device, forward, shapes, sizes)
    return SimpleNamespace(
        view=lambda rows: view(state, rows),
        stage=lambda rows, arrays: stage(state, rows, arrays),
        capture=lambda: capture(state),
        run=lambda rows, arrays: run(state, rows, arrays),
    )
