"""Figure of `course/deeper/the-wrapper.md`: from `LLM.generate` to `cudaGraphLaunch` in vLLM 0.33.

A box is a symbol of vLLM, its colour says how often it runs, an arrow says what it hands on. How
many pieces and live attentions there are is asked of `split_pieces`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch, Patch

from mini_engine.dispatch.pieces import split_pieces
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.step.kernels import StepShape, step_ops

OFTEN = {
    "start": (hue.OTHER, "once, at the start"),
    "shape": (hue.SERIES[0], "once a shape: for each graph"),
    "step": (hue.SERIES[1], "once a step"),
    "piece": (hue.SERIES[2], "once a step and piece"),
}
WIDE, TALL = 20.0, 15.4  # the sheet, in its own units


class Box(NamedTuple):
    """One symbol: left edge, top edge, width, how often it runs, its name, what it does."""

    left: float
    top: float
    width: float
    often: str
    name: str
    does: str

    @property
    def centre(self) -> float:
        return self.left + self.width / 2

    @property
    def foot(self) -> float:
        return self.top - HIGH


HIGH = 1.35  # of a box


def stack(path: Path) -> None:
    """The way down on the left and below, what was prepared for it on the right."""
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), "fused9")
    pieces = split_pieces([op.name for op in ops[:-3]], {"attention"})  # without the head's three
    live = sum(piece.splitting for piece in pieces)
    graphs = len(pieces) - live
    with canvas(
        path, (13, 11.2),
        title="A FULL step never meets a wrapper: the runner replays its graph. "
        f"A PIECEWISE step meets {graphs}",
        caption="vLLM 0.33.0 (commit 4ba787ec9), its default model runner, read in the source; "
        f"pieces of Qwen3-0.6B ({live} layers) cut at attention. An eager step (NONE) takes the "
        "middle way too, and its wrappers only call the compiled pieces.",
    ) as figure:  # fmt: skip
        legend, sheet = figure.subplots(2, 1, height_ratios=[0.5, 11])
        _legend(legend)
        sheet.set_axis_off()
        sheet.set_xlim(0, WIDE)
        sheet.set_ylim(0, TALL)
        _way_down(sheet, graphs, live)
        _prepared(sheet)


def _way_down(sheet: Axes, graphs: int, live: int) -> None:
    steps = (
        ("step", "LLM.generate → LLMEngine.step", "asks until every request ends"),
        ("step", "EngineCore.step → Scheduler.schedule", "its own process: who computes how much"),
        ("step", "Worker → GPUModelRunner.execute_model", "one step of the model"),
        ("step", "CudaGraphManager.dispatch", "which graph runs this batch?"),
    )
    handed = (
        "requests: token ids, sampling parameters",
        "SchedulerOutput: new tokens of each request",
        "counts: requests, tokens, uniform or not",
    )
    last = _column(sheet, 0.2, 9.6, steps, handed)
    full, context, model = (
        Box(0.2, 4.7, 5.6, "step", "run_fullgraph", "no context, no Python model"),
        Box(6.6, 4.7, 6.1, "step", "set_forward_context", "around the model's call"),
        Box(13.4, 4.7, 6.4, "step", "Qwen3Model.__call__", "decorated: runs what was compiled"),
    )
    launch, wrappers, attention = (
        Box(0.2, 1.6, 5.6, "step", "1 cudaGraphLaunch", "the whole forward pass"),
        Box(6.6, 1.6, 6.1, "piece", f"{graphs} × CUDAGraphWrapper", f"{graphs} cudaGraphLaunch"),
        Box(13.4, 1.6, 6.4, "piece", f"{live} × attention, live", "reads metadata in the context"),
    )
    for box in (full, context, model, launch, wrappers, attention):
        _draw(sheet, box)
    _arrow(sheet, (3.0, last.foot), (3.0, full.top), "FULL:\ndescriptor")
    words = "PIECEWISE or NONE: mode,\nBatchDescriptor, metadata"
    _arrow(sheet, (8.2, last.foot), (8.2, context.top), words)
    _arrow(sheet, (full.centre, full.foot), (launch.centre, launch.top), "graph.replay()")
    _arrow(sheet, (12.7, 4.02), (13.4, 4.02), "")
    _arrow(sheet, (15.0, model.foot), (11.4, wrappers.top), "")
    _arrow(sheet, (17.4, model.foot), (17.4, attention.top), "")
    _words(sheet, 9.2, 2.45, "tensors, piece by piece,\nfrom generated code", "center")


def _prepared(sheet: Axes) -> None:
    before = (
        ("start", "@support_torch_compile", "Dynamo traces once, guards dropped"),
        ("start", "VllmBackend, PiecewiseBackend", "cut at attention, compile each piece"),
        ("start", "wrap_with_cudagraph_if_needed", "a wrapper around each piece"),
        ("shape", "CudaGraphManager.capture", "warm up, capture; largest first"),
    )
    handed = ("one FX graph of the model", "compiled pieces", "the model, ready to be captured")
    last = _column(sheet, 11.2, 8.6, before, handed)
    _arrow(sheet, (last.centre, last.foot), (last.centre, 6.6), "")
    kept = "FULL: graphs, in the manager\nPIECEWISE: entries, in the wrappers"
    _words(sheet, last.centre, 6.2, kept, "center")


def _column(
    sheet: Axes,
    left: float,
    width: float,
    rows: Sequence[tuple[str, str, str]],
    handed: Sequence[str],
) -> Box:
    """Boxes one below the other, with what each hands to the next. Returns the last one."""
    boxes = [Box(left, 15.2 - 2.3 * at, width, *row) for at, row in enumerate(rows)]
    for box in boxes:
        _draw(sheet, box)
    for (above, below), words in zip(pairwise(boxes), handed, strict=True):
        _arrow(sheet, (above.centre, above.foot), (below.centre, below.top), words)
    return boxes[-1]


def _draw(sheet: Axes, box: Box) -> None:
    colour = OFTEN[box.often][0]
    sheet.add_patch(
        FancyBboxPatch(
            (box.left, box.foot), box.width, HIGH, boxstyle="round,pad=0,rounding_size=0.18",
            facecolor=colour, alpha=0.3, edgecolor=colour, linewidth=1.5,
        )
    )  # fmt: skip
    middle = box.foot + HIGH / 2
    sheet.text(box.centre, middle + 0.3, box.name, size=13, ha="center", va="center", weight="bold")
    sheet.text(box.centre, middle - 0.34, box.does, size=12, ha="center", va="center")


def _arrow(sheet: Axes, start: tuple[float, float], end: tuple[float, float], words: str) -> None:
    """An arrow, and right of it what it hands on."""
    sheet.add_patch(
        FancyArrowPatch(
            start, end, arrowstyle="-|>", mutation_scale=16, color=hue.INK, linewidth=1.5
        )
    )
    _words(sheet, (start[0] + end[0]) / 2 + 0.25, (start[1] + end[1]) / 2, words, "left")


def _words(sheet: Axes, x: float, y: float, words: str, align: str) -> None:
    sheet.text(x, y, words, size=12, ha=align, va="center", style="italic", linespacing=1.1)


def _legend(axes: Axes) -> None:
    axes.set_axis_off()
    axes.legend(
        handles=[Patch(color=colour, alpha=0.5, label=words) for colour, words in OFTEN.values()],
        loc="center left", ncols=4, columnspacing=1.4, handlelength=1.2, borderaxespad=0,
        fontsize=14,
    )  # fmt: skip


FIGURES = {"09-stack.svg": stack}
