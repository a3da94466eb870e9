"""What the widget of capture and replay shows: four stories, each run on the simulated device.

In:  nothing. Out: for each story its lines of Python, and after each line the memory of the GPU,
the names that point there, and the addresses that its kernels read and wrote. JavaScript only
draws.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.launch import Buffer
from mini_engine.step.cards import load_spec

CAPTURE = ("x = ones(4); y = empty(4)", "with capture() as graph: y.copy_(2 * x)", "graph.replay()")
LINES = {  # the three lines above, then these
    "fill": ("x.copy_(fives)", "graph.replay()"),
    "rebind": ("x = fives", "graph.replay()"),
    "keep": ("answer = y", "x.copy_(fives)", "graph.replay()"),
    "append": ("x.copy_(fives); x = cat([x, ones(2)])", "graph.replay()"),
}
TITLES = {
    "fill": "fill x",
    "rebind": "rebind x",
    "keep": "keep the output",
    "append": "append rows",
}
WANTED = {  # what somebody who thinks that the graph calls Python again expects
    "fill": ("y", [10.0] * 4),
    "rebind": ("y", [10.0] * 4),
    "keep": ("answer", [2.0] * 4),
    "append": ("y", [10.0] * 4 + [2.0] * 2),
}
TOLD = {
    "fill": "The new numbers were written to the old address, which the graph reads. It works.",
    "rebind": "The name x points elsewhere now. The graph has no names: it read the old address.",
    "keep": "answer is no copy. It is the address to which every replay writes, this one as well.",
    "append": "The longer x is new memory, and the graph knows neither its address nor its length.",
}


def stories() -> dict[str, Any]:
    """The state of the widget."""
    return {
        "stories": [{"name": name, "title": TITLES[name], **story(name)} for name in LINES],
        "story": 0,
        "line": 0,
    }


def story(name: str) -> dict[str, Any]:
    """One story: `frames`, a frame a line, and what was wanted and found at its end."""
    device = Device(load_spec("h200"), memory_bytes=64 * 2**20)
    names: dict[str, Buffer] = {}
    seen: list[Buffer] = []  # every piece of memory, the oldest first

    def bind(to: str, buffer: Buffer) -> Buffer:
        names[to] = buffer
        if all(buffer.address != other.address for other in seen):
            seen.append(buffer)
        return buffer

    frames = []

    def frame(reads: Buffer | None = None, writes: Buffer | None = None) -> None:
        cells = [
            {
                "address": f"{cell.address:#x}",
                "holds": [None if np.isnan(value) else float(value) for value in cell.array],
                "names": [name for name, of in names.items() if of.address == cell.address],
                "reads": reads is not None and cell.address == reads.address,
                "writes": writes is not None and cell.address == writes.address,
            }
            for cell in seen
        ]
        frames.append(cells)

    x = bind("x", device.upload(np.ones(4, np.float32)))
    y = bind("y", device.empty(4))
    frame()
    with device.capture() as graph:
        device.launch(k.scale, y, x, by=2.0)
    frame()
    graph.replay()
    frame(x, y)
    fives = np.full(4, 5, np.float32)
    if name == "rebind":
        bind("x", device.upload(fives))
        frame()
    elif name == "fill":
        device.copy_(x, fives)
        frame(writes=x)
    elif name == "keep":
        bind("answer", y)
        frame()
        device.copy_(x, fives)
        frame(writes=x)
    else:
        device.copy_(x, fives)
        bind("x", device.upload(np.concatenate([fives, np.ones(2, np.float32)])))
        frame(writes=x)
    graph.replay()
    frame(x, y)
    wanted_of, wanted = WANTED[name]
    found = [float(value) for value in device.read(names[wanted_of])]
    return {
        "lines": [*CAPTURE, *LINES[name]], "frames": frames, "of": wanted_of, "wanted": wanted,
        "found": found, "told": TOLD[name],
        "node": f"read {x.address:#x}, times 2, write {y.address:#x}",
    }  # fmt: skip
