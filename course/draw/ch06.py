"""Figure of chapter 6: eight faults, each as what its author believed and what a replay meets."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

FAULTS = (  # what its author took for granted, what a replay meets, and what you see
    ("a padded row", "It writes to a slot that nobody owns.", "The slot belongs to Ann now.",
     "wrong where the graph is not full"),
    ("a stale pointer", "The workspace lies at this address.", "Another tensor lies there.",
     "right at first, later wrong or dead"),
    ("an input rebound", "The name means this tensor.", "It means another one.",
     "the same answer, whatever you send"),
    ("a warm-up that changed state", "The count still is 0.", "The count is 1 too high.",
     "off by a constant from the start"),
    ("a baked scalar", "The setting is 2.", "It is 100, and the graph uses 2.",
     "a setting without effect"),
    ("a kept output", "The result is that of step 1.", "It is that of step 2.",
     "an earlier result changes afterwards"),
    ("a kernel left outside", "Every kernel is in the list.", "One never runs again.",
     "right on the data of the capture only"),
    ("a ladder too short", "No batch has more than 16 rows.", "One has 17, and finds no graph.",
     "dead or slow in the largest batches"),
)  # fmt: skip
COLUMNS = (0.0, 2.05, 5.3)
HIGH = 1.35  # of a fault


def faults(path: Path) -> None:
    """A row for each fault: what its author believed, what the replay meets, and the symptom."""
    with canvas(
        path,
        (6.9, 10.4),
        title="Eight faults: what was believed, what a replay meets, and what you see",
        caption="Drawn. Below each fault stands what you see of it from outside.",
    ) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        top = HIGH * len(FAULTS)
        axes.set(xlim=(0, 8.05), ylim=(0, top + 0.75))
        for x, head in zip(COLUMNS, ("fault", "believed", "at a replay"), strict=True):
            axes.text(x, top + 0.45, head, weight="bold", va="center", size=15)
        for row, (fault, before, after, seen) in enumerate(FAULTS):
            middle = top - HIGH * row - 0.43
            axes.text(0, middle, fill(fault, 13), va="center", weight="bold", size=14)
            _box(axes, COLUMNS[1], middle, before, hue.KERNEL)
            _box(axes, COLUMNS[2], middle, after, hue.MARK)
            axes.text(COLUMNS[1], middle - 0.65, f"you see: {seen}", va="center", size=14)
            axes.add_patch(
                FancyArrowPatch(
                    (4.75, middle),
                    (5.3, middle),
                    arrowstyle="-|>",
                    mutation_scale=16,
                    color=hue.INK,
                )
            )


def _box(axes: Axes, left: float, middle: float, text: str, colour: str) -> None:
    axes.add_patch(
        Rectangle((left, middle - 0.43), 2.7, 0.86, facecolor=hue.PAPER, edgecolor=colour, lw=2.5)
    )
    axes.text(left + 0.12, middle, fill(text, 20), va="center", size=14)


FIGURES = {"06-eight-faults.svg": faults}
