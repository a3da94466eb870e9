"""The figure of `deeper/what-a-service-meets.md`: copy nodes, and what the host waits for.

Three ways to run two steps whose graphs begin with a copy from the same pinned buffer. The order is
what counts; the lengths are chosen to be seen.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

BEFORE, WRITE, LAUNCH, COPY, KERNELS = 3.0, 1.0, 0.5, 0.6, 3.0
COLOURS = {
    "the host writes the buffer": hue.SERIES[0],
    "launches the graph": hue.CALL,
    "waits": hue.IDLE,
    "copy node reads the buffer": hue.COPY,
    "kernels of the step": hue.NODE,
    "the step before": hue.OTHER,
}


@dataclass(frozen=True)
class Box:
    lane: str
    kind: str
    start: float
    end: float
    text: str = ""


def two_steps(waits_for: str) -> list[Box]:
    """`waits_for` nothing, the first "copy" or the whole first "replay" before the second write."""
    boxes = [Box("GPU", "the step before", 0, BEFORE)]
    cpu, gpu, copied, replayed = 0.0, BEFORE, 0.0, 0.0
    for step in ("1", "2"):
        free = {"copy": copied, "replay": replayed}.get(waits_for, 0.0)
        if free > cpu:
            boxes.append(Box("CPU", "waits", cpu, free))
            cpu = free
        boxes.append(Box("CPU", "the host writes the buffer", cpu, cpu + WRITE, step))
        cpu += WRITE
        boxes.append(Box("CPU", "launches the graph", cpu, cpu + LAUNCH))
        cpu += LAUNCH
        start = max(cpu, gpu)
        copied = start + COPY
        boxes.append(Box("GPU", "copy node reads the buffer", start, copied, step))
        gpu = replayed = copied + KERNELS
        boxes.append(Box("GPU", "kernels of the step", copied, gpu))
    writes = [box.end for box in boxes if box.kind == "the host writes the buffer"]
    return [replace(box, text=read(box, writes)) if "kernels" in box.kind else box for box in boxes]


def read(kernels: Box, writes: list[float]) -> str:
    """Which inputs they run on: those that were written last when their copy began."""
    return f"on {sum(end <= kernels.start - COPY for end in writes)}"


def race(path: Path) -> None:
    """Nobody waits; the host waits for the replay; the host waits for the copy node."""
    ways = {
        "nobody waits": "",
        "an event behind the replay": "replay",
        "an event behind the copy node": "copy",
    }
    title = "A copy node reads late: wait for the copy, not for the whole replay"
    caption = (
        "Order, not scale: two steps whose graphs begin with a copy from one pinned buffer, while "
        "the GPU is still at the step before. The digits say which step's inputs are written, "
        "whose copy it is, and which inputs its kernels run on."
    )
    drawn = {name: two_steps(way) for name, way in ways.items()}
    with canvas(path, (6.9, 9.2), title=title, caption=caption) as figure:
        key, *rows = figure.subplots(4, 1, height_ratios=[0.85, 1, 1, 1])
        key.set_axis_off()
        legend = key.legend(
            handles=[Patch(color=colour, label=kind) for kind, colour in COLOURS.items()],
            loc="upper left", bbox_to_anchor=(-0.1, 1), ncols=2,
            borderaxespad=0, columnspacing=1, handlelength=1,
        )  # fmt: skip
        legend.set_in_layout(False)  # a long name must not make the lanes narrow
        for axes, (name, boxes) in zip(rows, drawn.items(), strict=True):
            lanes(axes, name, boxes)


def lanes(axes: Axes, name: str, boxes: list[Box]) -> None:
    """CPU above GPU."""
    axes.set_title(name, weight="bold")
    for box in boxes:
        low = 1.06 if box.lane == "CPU" else 0.06
        width = box.end - box.start
        axes.add_patch(
            Rectangle(
                (box.start, low), width, 0.88, facecolor=COLOURS[box.kind], edgecolor=hue.PAPER
            )
        )
        axes.text(
            (box.start + box.end) / 2, low + 0.44, box.text, ha="center", va="center", size=14
        )
    axes.set(xlim=(0, 12.2), ylim=(0, 2))
    axes.set_xticks([])
    axes.set_yticks([0.5, 1.5], ["GPU", "CPU"], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False)


FIGURES = {"05-copy-nodes.svg": race}
