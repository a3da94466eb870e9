"""The ablation ladder as a waterfall: what each idea takes off a decode step, down to the floor.

In:  an `Ablation` (`mini_engine.records.measured`). Out: a file.

The axis is logarithmic: from transformers to the floor it is a factor of some thirty, and on a
straight axis all that comes after the graph would be a hair. A bar is what an idea saves, from the
ITL before it to its own.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mini_engine.plots.canvas import BLACK, BLUE, VERMILION, canvas
from mini_engine.plots.measured import milliseconds, titled, watermark
from mini_engine.records.measured import Ablation, Origin
from mini_engine.records.rows import Row


def waterfall(ladder: Ablation, path: Path | str, origin: Origin) -> None:
    """One row an idea, with µs saved and the share of a copy's bandwidth; the floor at the end."""
    ideas, floor_us = ladder.ideas, ladder.floor_us
    first, last = ideas[0].row, ideas[-1].row
    caption = (
        f"{first.shape}, batch {first.batch}, {first.context:,} tokens of context. "
        f"{origin.caption()} {origin.floor_caption()} Logarithmic axis; a bar is what an idea "
        "saves (hatched: loses)."
    )
    if ladder.left_out:
        caption += f" Without a result, left out: {', '.join(ladder.left_out)}."
    title = titled(_finding(first, last, floor_us), origin)
    with canvas(path, (14, 3.4 + 0.75 * len(ideas)), title=title, caption=caption) as figure:
        grid = figure.add_gridspec(1, 2, width_ratios=[1.7, 1])
        axes = figure.add_subplot(grid[0, 0])
        beside = figure.add_subplot(grid[0, 1], sharey=axes)
        beside.set_axis_off()
        _head(beside)
        for row, idea in enumerate(ideas):
            now, before = idea.row.itl_us, idea.row.itl_us + idea.saved_us
            if row:
                _bar(axes, row, before, now)
                axes.plot([before, before], [row - 1, row], color=BLACK, linewidth=1)
            axes.plot(now, row, "D", color=BLACK, markersize=9)
            saved = f"{idea.saved_us:,.0f}".replace("-", "−") if row else ""
            _words(beside, row, f"{now:,.0f}", saved, f"{idea.row.percent_of_copy:.0f}%")
        bottom = len(ideas)
        axes.plot([last.itl_us] * 2, [bottom - 1, bottom], color=BLACK, linewidth=1)
        axes.barh(
            bottom, last.itl_us - floor_us, left=floor_us, height=0.55, color="white",
            edgecolor=BLACK, linestyle=":",
        )  # fmt: skip
        axes.plot(floor_us, bottom, "|", color=BLACK, markersize=26, markeredgewidth=3)
        _words(beside, bottom, f"{floor_us:,.0f}", f"{ladder.to_the_floor_us:,.0f} left", "100%")
        axes.axvline(floor_us, color=BLACK, linestyle=(0, (1, 1)), linewidth=2.5)
        _dress(
            axes, [idea.label for idea in ideas], floor_us, max(idea.row.itl_us for idea in ideas)
        )
        watermark(figure, origin)


# ---------------------------------------------------------------- parts


def _bar(axes: Axes, row: int, before: float, now: float) -> None:
    low, high = min(before, now), max(before, now)
    slower = now > before
    axes.barh(
        row, high - low, left=low, height=0.55, color="white" if slower else BLUE,
        edgecolor=VERMILION if slower else BLUE, hatch="///" if slower else None,
    )  # fmt: skip


def _head(axes: Axes) -> None:
    axes.set_xlim(0, 1)
    for x, word in zip((0.30, 0.66, 1.0), ("ITL µs", "saved µs", "% of copy"), strict=True):
        axes.text(x, -0.8, word, ha="right", va="center", weight="bold")


def _words(axes: Axes, row: int, *words: str) -> None:
    for x, word in zip((0.30, 0.66, 1.0), words, strict=True):
        axes.text(x, row, word, ha="right", va="center")


def _dress(axes: Axes, labels: list[str], floor_us: float, top_us: float) -> None:
    axes.set_xscale("log")
    axes.set_xlim(floor_us * 0.85, top_us * 1.15)
    axes.set_ylim(len(labels) + 0.6, -1.2)
    axes.set_yticks(range(len(labels) + 1), [*labels, "floor: bytes at a copy's speed"])
    axes.grid(axis="y", visible=False)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.xaxis.set_minor_formatter(
        FuncFormatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else "")
    )
    axes.set_xlabel("µs a token (ITL)")


def _finding(first: Row, last: Row, floor_us: float) -> str:
    over = last.itl_us / floor_us
    return (
        f"From {milliseconds(first.itl_us)} to {milliseconds(last.itl_us)} a token: "
        f"{first.itl_us / last.itl_us:.1f}× as fast, and "
        + (f"{over - 1:.0%} above the floor" if over < 2 else f"{over:,.0f} times the floor")
    )
