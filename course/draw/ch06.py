"""Figure of chapter 6: eight faults, each as what its author believed and what a replay meets."""

from __future__ import annotations

from pathlib import Path
from textwrap import fill

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas

FAULTS = (  # what its author took for granted, and what a replay meets
    ("a padded row", "It writes to a slot that nobody owns.", "The slot belongs to Ann now."),
    ("a stale pointer", "The workspace lies at this address.", "Another one's tensor lies there."),
    ("an input rebound", "The name stands for this tensor.", "It stands for another one."),
    ("a warm-up that changed state", "The count is still 0.", "The count is 1 too high."),
    ("a baked scalar", "The setting is 2.", "It is 100, and the graph uses 2."),
    ("a kept output", "The tensor holds the result of step 1.", "It holds that of step 2."),
    ("a kernel left outside", "Every kernel is in the list.", "One never runs again."),
    ("a ladder too short", "No batch has more than 16 rows.", "One has 17, and finds no graph."),
)
COLUMNS = (0.0, 2.05, 5.3)


def faults(path: Path) -> None:
    """A row for each fault: what its author believed, and what the replay meets."""
    with canvas(
        path,
        (6.9, 8.4),
        title="Eight beliefs about a recording, and what a replay meets instead",
        caption="Drawn: what the author of each fault took for granted, and what a replay meets.",
    ) as figure:
        axes = figure.subplots()
        axes.set_axis_off()
        top = len(FAULTS)
        axes.set(xlim=(0, 8.05), ylim=(-0.1, top + 0.75))
        for x, head in zip(COLUMNS, ("fault", "taken for granted", "at a replay"), strict=True):
            axes.text(x, top + 0.35, head, weight="bold", va="center", size=15)
        for row, (fault, before, after) in enumerate(FAULTS):
            middle = top - row - 0.5
            axes.text(0, middle, fill(fault, 13), va="center", weight="bold", size=14)
            _box(axes, COLUMNS[1], middle, before, hue.KERNEL)
            _box(axes, COLUMNS[2], middle, after, hue.CALL)
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
