"""Figure of chapter 6: eight faults, each as what was true at the capture and at the replay."""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.plots.canvas import BLACK, BLUE, VERMILION, canvas

FAULTS = (  # who reads or writes, what it found at the capture, what it finds at the replay
    ("a padded row", "writes to", "nobody's slot", "Ann's slot"),
    ("a stale pointer", "points to", "the workspace", "somebody's tensor"),
    ("an input rebound", "reads", "the new ids", "the old ids"),
    ("a warm-up", "leaves", "count = 0", "count = 1"),
    ("a baked scalar", "multiplies by", "2, the setting", "2; set to 100"),
    ("a kept output", "shows", "step 1", "step 2"),
    ("a kernel outside", "computed from", "today's input", "the first input"),
    ("a gap in the ladder", "holds", "16 requests", "none of 17"),
)
COLUMNS = (0.0, 3.1, 6.0)


def faults(path: Path) -> None:
    """A row for each fault: what its author believed, and what the replay meets."""
    with canvas(
        path,
        (9, 7.6),
        title="Eight times the recording was right, and then the world moved",
        caption="Drawn: what the author of each fault took for granted, and what a replay meets.",
    ) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        top = len(FAULTS)
        axes.set(xlim=(0, 8.9), ylim=(-0.1, top + 0.75))
        for x, head in zip(COLUMNS, ("fault", "was believed to be", "a replay meets"), strict=True):
            axes.text(x, top + 0.35, head, weight="bold", va="center")
        for row, (fault, does, before, after) in enumerate(FAULTS):
            middle = top - row - 0.5
            axes.text(0, middle + 0.17, fault, va="center", weight="bold", size=14)
            axes.text(0, middle - 0.19, does, va="center", size=14)
            _box(axes, COLUMNS[1], middle, before, BLUE)
            _box(axes, COLUMNS[2], middle, after, VERMILION)
            axes.add_patch(
                FancyArrowPatch(
                    (5.65, middle), (6.0, middle), arrowstyle="-|>", mutation_scale=16, color=BLACK
                )
            )


def _box(axes: Axes, left: float, middle: float, text: str, colour: str) -> None:
    axes.add_patch(
        Rectangle((left, middle - 0.34), 2.55, 0.68, facecolor="white", edgecolor=colour, lw=2.5)
    )
    axes.text(left + 1.27, middle, text, ha="center", va="center", size=14)


FIGURES = {"06-eight-faults.png": faults}
