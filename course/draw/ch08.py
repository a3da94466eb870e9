"""Figures of chapter 8: a batch between two rungs, what it costs, and the best ladders of a trace.

`served` and `lost` are the chapter's numbers too: a request trace served by vLLM's default ladder,
and what the same steps would take on another one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes

from course.draw.ch09 import draw_lanes, laid_out, lane_legend
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import BLACK, BLUE, ORANGE, PREDICTED, VERMILION, canvas
from mini_engine.serving.ladder_cost import LadderCosts, same_steps_on, size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import SHIPPED_TRACE, read_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import Mode, step_time
from mini_engine.step.step_model import StepModel

MODE, TOP_SEQS, CONTEXT, BATCH = "FULL_AND_PIECEWISE", 256, 512, 33
SHAPE, SPEC = named_shape("qwen3-0.6b"), load_spec("h200")
COSTS = StepModel(SHAPE, SPEC)  # remembers what it was asked
OWN = default_capture_sizes(TOP_SEQS, 8192)


# ---------------------------------------------------------------- numbers of the chapter


def step_shape(rows: int) -> StepShape:
    """BATCH requests of CONTEXT tokens, padded to `rows`: padded rows have no context to read."""
    return StepShape(rows, rows, BATCH * CONTEXT, BATCH * CONTEXT)


@cache
def served() -> ServeReport:
    """The trace that ships with the engine, on vLLM's default ladder."""
    server = size_server(SHAPE, SPEC, MODE, OWN, max_num_seqs=TOP_SEQS)
    return replay(read_trace(SHIPPED_TRACE), COSTS, server.limits, server.dispatcher)


def histogram(report: ServeReport, top: int) -> dict[int, int]:
    """Rows of a step before padding -> steps, up to `top` rows."""
    steps: Counter[int] = Counter()
    for ran, (count, _) in report.ran.items():
        if ran.rows <= top:
            steps[ran.rows] += count
    return dict(sorted(steps.items()))


def busy_us(report: ServeReport, sizes: Sequence[int]) -> float:
    """The time of the same steps on the ladder `sizes`."""
    return same_steps_on(GraphDispatcher(MODE, sizes, TOP_SEQS), report, COSTS)[1]


def lost(report: ServeReport, sizes: Sequence[int]) -> float:
    """The share by which the steps take longer than if every batch had a rung of its own."""
    every = [*histogram(report, max(OWN)), max(OWN)]
    return busy_us(report, sizes) / busy_us(report, sorted(set(every))) - 1


# ---------------------------------------------------------------- figures


def ladder(path: Path) -> None:
    """The staircase, and the step of a batch of 33 in three ways."""
    rung = CaptureLadder(OWN).rung(BATCH) or BATCH
    ways: tuple[tuple[str, Mode, int], ...] = (
        (f"one graph of {rung} rows", "full", rung),
        (f"in pieces of {rung} rows: no full graph fits", "piecewise", rung),
        (f"eagerly, {BATCH} rows: above the top, or no rung at all", "eager", BATCH),
    )
    exact, full, _, eager = (
        step_time(step_ops(SHAPE, step_shape(rows), SPEC.ops), SPEC, mode, BATCH).itl_us
        for mode, rows in (("full", BATCH), *((mode, rows) for _, mode, rows in ways))
    )
    padding, cliff = full / exact - 1, eager / full
    with canvas(
        path, (12.6, 9.6),
        title=f"A batch of {BATCH} runs at {rung}: {rung - BATCH} rows of padding cost "
        f"{padding:.1%}; without a graph its step takes {cliff:.0f} times as long",
        caption=f"{PREDICTED}: ladder of vLLM 0.33 for max_num_seqs 256; below, decode steps of "
        "Qwen3-0.6B on an H200, vLLM, 33 requests of 512 tokens of context.",
    ) as figure:  # fmt: skip
        rows = figure.subplots(5, 1, height_ratios=[2.1, 0.45, 0.8, 0.8, 0.8])
        _staircase(rows[0], CaptureLadder(OWN))
        lane_legend(rows[1], ("engine", "launch", "graph", "wait", "kernel", "node"), 3)
        longest = 0.0
        for axes, (words, mode, padded) in zip(rows[2:], ways, strict=True):
            ops = step_ops(SHAPE, step_shape(padded), SPEC.ops)
            boxes, itl_us = laid_out(ops, SPEC, mode, BATCH)
            longest = max(longest, itl_us)
            draw_lanes(axes, boxes, 0, itl_us)
            axes.axvline(itl_us, color=BLACK, linewidth=1.5)
            axes.text(itl_us, 1.1, f" {itl_us:,.0f} µs", weight="bold", va="center")
            axes.set_title(words, pad=3)
        for axes in rows[2:]:
            axes.set_xlim(0, longest * 1.12)
            axes.tick_params(axis="x", labelbottom=axes is rows[-1])
        rows[-1].set_xlabel("µs since the step began")


def _staircase(axes: Axes, rungs: CaptureLadder) -> None:
    batches = list(range(1, 65))
    ran = [rungs.rung(batch) or 0 for batch in batches]
    axes.fill_between(batches, batches, ran, step="pre", color=ORANGE, alpha=0.6, label="padding")
    axes.step(batches, ran, where="pre", color=BLUE, label="rung: rows computed")
    axes.plot(batches, batches, ":", color=BLACK, label="batch: rows asked for")
    rung = ran[BATCH - 1]
    axes.plot([BATCH, BATCH], [BATCH, rung], "o-", color=VERMILION, markersize=7, linewidth=3)
    axes.annotate(
        f"{BATCH} runs at {rung}", (BATCH, rung), xytext=(-8, 8), textcoords="offset points",
        ha="right", weight="bold", color=VERMILION,
    )  # fmt: skip
    axes.set_xlim(0, 64)
    axes.set_ylim(0, None)
    axes.set_xlabel("batch (requests that decode together)")
    axes.set_ylabel("rows")
    axes.legend(loc="upper left")


def best_ladders(path: Path) -> None:
    """Padding and lost time of the best ladders of more and more rungs."""
    report, top = served(), max(OWN)
    steps = histogram(report, top)
    costs = LadderCosts(SHAPE, SPEC, MODE, TOP_SEQS)
    points = [p for p in costs.curve(steps, len(OWN), top) if len(p.ladder) > 1]
    own, two = costs.point(CaptureLadder(OWN), steps), points[0]
    with canvas(
        path, (13, 6.2),
        title=f"Rows are not time: two rungs pad {two.waste.wasted_fraction:.0%} of the rows and "
        f"lose {lost(report, two.ladder):.1%} of the time",
        caption=f"{PREDICTED}: {sum(steps.values()):,} steps of up to {top} rows, a synthetic "
        "trace of 500 requests on Qwen3-0.6B and one H200; every ladder ends at 512 rows. Lost: "
        "against a rung for every batch size.",
    ) as figure:  # fmt: skip
        left, right = figure.subplots(1, 2)
        rungs = [len(p.ladder) for p in points]
        _curve(left, rungs, [p.waste.wasted_fraction for p in points], own.waste.wasted_fraction)
        left.set_ylabel("padding (of all rows computed)")
        _curve(right, rungs, [lost(report, p.ladder) for p in points], lost(report, OWN))
        right.set_ylabel("time lost to padding")
        left.legend(loc="upper right")


def _curve(axes: Axes, rungs: Sequence[int], shares: Sequence[float], own: float) -> None:
    axes.plot(rungs, shares, "o-", color=BLUE, markersize=6, label="best ladder of n rungs")
    axes.plot(
        [len(OWN)], [own], "*", color=ORANGE, markersize=20, markeredgecolor="black",
        label="vLLM's default, 51 rungs",
    )  # fmt: skip
    axes.set_xlim(0, None)
    axes.set_ylim(0, None)
    axes.set_xlabel("rungs n")
    axes.yaxis.set_major_formatter(lambda share, _position: f"{100 * share:.2g}%")


FIGURES = {"08-ladder.png": ladder, "08-best-ladders.png": best_ladders}
