"""Figure of chapter 6: eight faults, each a place, what was believed and what a replay finds."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

FAULTS = (  # the place, what its author believed of it, what a replay finds, and what you see
    ("a padded row", "slot", "nobody", "Ann", "wrong where the graph is not full"),
    ("a stale pointer", "address", "workspace", "another's", "right at first, later wrong or dead"),
    ("an input rebound", "name x", "new tensor", "old tensor", "the same, whatever you send"),
    ("a warm-up that changed state", "count", "0", "1", "off by a constant from the start"),
    ("a baked scalar", "setting", "100", "2", "a setting without effect"),
    ("a kept output", "output", "step 1", "step 2", "an earlier result changes later"),
    ("a kernel left outside", "kernels", 4, 3, "right on the data of the capture only"),
    ("a ladder too short", "rows", 16, 17, "dead or slow in the largest batches"),
)  # fmt: skip
BEFORE, AFTER, WIDE, TALL = 3.35, 5.95, 2.0, 0.62  # of the two cells
HIGH = 1.3  # of a fault


def faults(path: Path) -> None:
    """A row for each fault: its place as believed and as found, and the symptom."""
    with canvas(
        path,
        (6.9, 10.0),
        title="Eight faults: what was believed of a place, and what a replay finds",
        caption="Drawn. Below each place stands what you see of its fault from outside.",
    ) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        top = HIGH * len(FAULTS)
        axes.set(xlim=(0, 8.05), ylim=(-0.1, top + 0.5))
        for x, head in ((0, "fault"), (BEFORE, "believed"), (AFTER, "at a replay")):
            axes.text(x, top + 0.3, head, weight="bold", va="center", size=15)
        for row, (fault, place, before, after, seen) in enumerate(FAULTS):
            middle = top - HIGH * row - 0.4
            axes.text(0, middle - 0.14, fill(fault, 13), va="center", weight="bold", size=14)
            axes.text(
                BEFORE - 0.15, middle, place, va="center", ha="right", size=14, color=hue.SOFT
            )
            _cell(axes, BEFORE, middle, before, before)
            _cell(axes, AFTER, middle, after, before)
            axes.text(BEFORE - 0.9, middle - 0.62, f"→ {seen}", va="center", size=14)
            arrow = (BEFORE + WIDE + 0.05, middle), (AFTER - 0.05, middle)
            axes.add_patch(
                FancyArrowPatch(*arrow, arrowstyle="-|>", mutation_scale=16, color=hue.INK)
            )


def _cell(axes: Axes, left: float, middle: float, held: str | int, before: str | int) -> None:
    """A place with its owner, or as many things as there are, of which one has no place or is not
    there."""
    low, colour = middle - TALL / 2, hue.NODE if held == before else hue.MARK
    if isinstance(held, str):
        axes.add_patch(Rectangle((left, low), WIDE, TALL, facecolor=colour, edgecolor=hue.INK))
        axes.text(left + WIDE / 2, middle, held, ha="center", va="center", size=15, weight="bold")
        return
    assert isinstance(before, int)
    one = WIDE / (before + 1)
    for i in range(max(held, before)):
        fits = i < min(held, before)
        box = Rectangle((left + i * one, low), 0.85 * one, TALL, edgecolor=hue.INK, lw=0.8)
        box.set(facecolor=hue.NODE if fits else hue.MARK if i < held else hue.PAPER)
        axes.add_patch(box)


FIGURES = {"06-eight-faults.svg": faults}
