"""Figure of chapter 8: a batch between two rungs and what it costs; numbers of a trace's ladders.

`served` and `lost` are the chapter's numbers too: a request trace served by vLLM's default ladder,
and what the same steps would take on another one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import PREDICTED, canvas
from mini_engine.serving.ladder_cost import same_steps_on, size_server
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


histogram = ServeReport.histogram  # of a report, up to so many rows


def busy_us(report: ServeReport, sizes: Sequence[int], costs: StepModel = COSTS) -> float:
    """The time of the same steps on the ladder `sizes`."""
    return same_steps_on(GraphDispatcher(MODE, sizes, TOP_SEQS), report, costs)[1]


def lost(report: ServeReport, sizes: Sequence[int], costs: StepModel = COSTS) -> float:
    """The share by which the steps take longer than if every batch had a rung of its own."""
    every = sorted({*histogram(report, max(OWN)), max(OWN)})
    return busy_us(report, sizes, costs) / busy_us(report, every, costs) - 1


# ---------------------------------------------------------------- figures


def ladder(path: Path) -> None:
    """The staircase, and the step of a batch of 33 in three ways."""
    rung = CaptureLadder(OWN).rung(BATCH) or BATCH
    ways: tuple[tuple[str, Mode, int], ...] = (
        (f"one graph of {rung} rows", "full", rung),
        (f"in pieces of {rung} rows", "piecewise", rung),
        (f"no graph, {BATCH} rows", "eager", BATCH),
    )
    exact, full, _, eager = (
        step_time(step_ops(SHAPE, step_shape(rows), SPEC.ops), SPEC, mode, BATCH).itl_us
        for mode, rows in (("full", BATCH), *((mode, rows) for _, mode, rows in ways))
    )
    padding, cliff = full / exact - 1, eager / full
    with canvas(
        path, (6.9, 8.2),
        title=f"A batch of {BATCH} runs at {rung}: {rung - BATCH} rows of padding cost "
        f"{padding:.1%}; without a graph its step takes {cliff:.0f} times as long",
        caption=f"{PREDICTED}: ladder of vLLM 0.33 for max_num_seqs 256; below, decode steps of "
        "Qwen3-0.6B on an H200, 33 requests of 512 tokens of context.",
    ) as figure:  # fmt: skip
        above, below = figure.subplots(2, 1, height_ratios=[1.5, 1])
        _staircase(above, CaptureLadder(OWN))
        for row, (_, mode, padded) in enumerate(ways):
            ops = step_ops(SHAPE, step_shape(padded), SPEC.ops)
            itl_ms = step_time(ops, SPEC, mode, BATCH).itl_us / 1e3
            below.barh(row, itl_ms, color=hue.MODE_COLOURS[mode])
            below.text(itl_ms, row, f" {itl_ms:.1f} ms", weight="bold", va="center")
        below.set_yticks(range(len(ways)), [words for words, _, _ in ways])
        below.invert_yaxis()
        below.set_xlim(0, eager / 1e3 * 1.15)
        below.grid(visible=False, axis="y")
        below.set_xlabel("time of the step (ms)")


def _staircase(axes: Axes, rungs: CaptureLadder) -> None:
    batches = list(range(1, 65))
    ran = [rungs.rung(batch) or 0 for batch in batches]
    axes.fill_between(
        batches, batches, ran, step="pre", color=hue.PADDING, alpha=0.6, label="padding"
    )
    axes.step(batches, ran, where="pre", color=hue.DECODE, label="rung: rows computed")
    axes.plot(batches, batches, ":", color=hue.INK, label="batch: rows asked for")
    rung = ran[BATCH - 1]
    axes.plot([BATCH, BATCH], [BATCH, rung], "o-", color=hue.MARK, markersize=7, linewidth=3)
    axes.annotate(
        f"{BATCH} runs at {rung}", (BATCH, rung), xytext=(14, -34), textcoords="offset points",
        ha="left", weight="bold", color=hue.MARK,
    )  # fmt: skip
    axes.set_xlim(0, 64)
    axes.set_ylim(0, 96)  # room for the legend
    axes.set_xlabel("batch (requests that decode together)")
    axes.set_ylabel("rows")
    axes.legend(loc="upper left")


FIGURES = {"08-ladder.svg": ladder}
