"""The figure of deeper/a-compile-backend.md: one layer as kernels, rewritten, cut at attention.

In: the op list of a plain model (`hf56`) for one decode step of Qwen3-0.6B. Out: an SVG. Which ops
an addition and its norm are, and where attention stands, is read from the list.
"""

from __future__ import annotations

from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch, Rectangle

from course.draw.ch11 import CONFIG, DECODE
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.kernels import OpCost, step_parts

ADDS = {"attention_residual": "post_attention_norm", "mlp_residual": "next_norm"}
NAMES = {"sum": "addition and RMSNorm", "product": "matrix product", "attention": "attention",
         "other": "everything else"}  # fmt: skip
COLOURS = {"sum": hue.MARK, "product": hue.PRODUCT, "attention": hue.ATTENTION, "other": hue.SMALL}


def kinds() -> list[str]:
    """One layer, a word for each kernel."""
    return [kind_of(op) for op in step_parts(CONFIG, DECODE, "hf56").layer]


def kind_of(op: OpCost) -> str:
    place = op.name.partition(".")[0]
    if place in ADDS or place in ADDS.values():
        return "sum"
    return op.kind


def rewritten(row: list[str]) -> list[str]:
    """After the pass: each run of an addition and its norm is one kernel."""
    return [kind for i, kind in enumerate(row) if kind != "sum" or row[i - 1] != "sum"]


def strip(axes: Axes, row: list[str], y: float, title: str) -> None:
    """A row of boxes, one a kernel."""
    for x, kind in enumerate(row):
        box = Rectangle((x, y), 0.86, 0.8, facecolor=COLOURS[kind], edgecolor="none")
        axes.add_patch(box)
    axes.text(0, y + 0.92, title, va="bottom")


def cut_at_attention(path: Path) -> None:
    """Three rows: as Dynamo writes it, after the pass, and what is launched."""
    before = kinds()
    after = rewritten(before)
    at = after.index("attention")
    caption = (
        "One layer of Qwen3-0.6B, a box a kernel, by transformers' op list, hf56; that of our "
        "plain model is much like it. What follows attention is one piece with the beginning of "
        "the next layer."
    )
    title = "What the pass makes one, and where the graph is cut"
    with canvas(path, (6.9, 6.6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        strip(axes, before, 4, f"a plain model: {len(before)} kernels a layer")
        strip(axes, after, 2, f"after the pass: {len(after)}")
        live = Rectangle((at, 0), 0.86, 0.8, facecolor=COLOURS["attention"], edgecolor="none")
        axes.add_patch(live)
        axes.text(0, 0.92, "cut: a replay, and attention live", va="bottom")
        for start, end, name in (
            (0, at, "… one piece: one replay"),
            (at + 1, len(after), "next piece …"),
        ):
            width = end - start - 0.14
            frame = Rectangle((start, 0), width, 0.8, facecolor=hue.PAPER, edgecolor=hue.INK)
            axes.add_patch(frame)
            left = start + (2 if start else 0)  # behind "live"
            axes.text(left, -0.25, name, va="top")
        for x in (at - 0.07, at + 0.93):
            axes.plot([x, x], [-0.2, 2.9], color=hue.INK, linewidth=0.8, linestyle=":")
        axes.text(at + 0.43, -0.25, "live", ha="center", va="top")
        axes.set_xlim(-0.5, len(before) + 0.5)
        axes.set_ylim(-0.8, 6.9)
        axes.set_axis_off()
        handles = [Patch(color=COLOURS[kind], label=NAMES[kind]) for kind in COLOURS]
        axes.legend(handles=handles, ncols=2, loc="upper left", borderaxespad=0)


FIGURES = {"13-compile-backend.svg": cut_at_attention}
