"""The last figure of chapter 7: tokens a second without pages, and what the reads are for.

Above: throughput against batch for the requests of the shipped trace, by a static cache with and
without graphs, and by the paged engine on the same cost model. Below: what slots are read for.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from matplotlib.axes import Axes

from labs.lab07b_static_cache.masked_rows import masked_columns
from labs.lab07b_static_cache.static_batches import static_batches_us
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import named_shape
from mini_engine.plots import hue
from mini_engine.plots.canvas import PREDICTED, canvas
from mini_engine.serving.replay import replay
from mini_engine.serving.request_trace import SHIPPED_TRACE, TraceRequest, read_trace
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import Mode
from mini_engine.step.step_model import Line, StepModel

T_MAX, BUDGET, BLOCK = 4096, 8192, 16
BATCHES = (1, 4, 8, 16, 64, 256)
PAGED, REFILLED = "pages, seats filled again", "rows, seats filled again"
GRAPHS, EAGER = "rows, static batches", "the same, eager"
STYLES = {
    PAGED: (hue.MARK, "-"),
    REFILLED: (hue.SERIES[0], "-"),
    GRAPHS: (hue.FULL, "--"),
    EAGER: (hue.EAGER, "--"),
}
PARTS = {"for a text": hue.DECODE, "behind a text": hue.IDLE, "in a finished row": hue.PADDING}


class WholeRows(StepModel):
    """Steps in which attention reads a row of T_MAX slots for each request."""

    def lines(
        self, mode: Mode, num_tokens: int, num_reqs: int, served: int | None = None
    ) -> tuple[Line, ...]:
        keys = num_reqs * T_MAX
        shape = StepShape(num_tokens, num_reqs, keys, keys, served)
        return ((super().itl_us(mode, shape), 0.0),)

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        return super().itl_us(mode, replace(shape, kv_tokens=shape.served * T_MAX))


@cache
def requests() -> tuple[TraceRequest, ...]:
    """Those of the shipped trace that fit into a row, all waiting at the start."""
    every = read_trace(SHIPPED_TRACE)
    fits = [r for r in every if r.prompt_tokens + r.output_tokens <= T_MAX]
    return tuple(TraceRequest(0.0, r.prompt_tokens, r.output_tokens) for r in fits)


def tokens_per_s(batch: int) -> dict[str, float]:
    """Of one batch size, by each way."""
    shape, spec = named_shape("qwen3-0.6b"), load_spec("h200")
    costs = StepModel(shape, spec)
    lengths = [(r.prompt_tokens, r.output_tokens) for r in requests()]
    written = sum(new for _, new in lengths)
    limits = SchedulerLimits(batch, BUDGET, 1 + batch * T_MAX // BLOCK, BLOCK, T_MAX)
    dispatcher = GraphDispatcher("FULL", default_capture_sizes(batch, BUDGET), batch)
    found = {
        name: replay(requests(), steps, limits, dispatcher).tokens_per_s
        for name, steps in ((PAGED, costs), (REFILLED, WholeRows(shape, spec)))
    }
    for name, mode in ((GRAPHS, "full"), (EAGER, "eager")):
        took_us = static_batches_us(lengths, costs, mode, batch=batch, t_max=T_MAX)  # type: ignore[arg-type]
        found[name] = written / took_us * 1e6
    return found


def shares(batch: int) -> list[float]:
    """Of the slots that are read, those for each of PARTS, in percent."""
    lengths = [(r.prompt_tokens, r.output_tokens) for r in requests()]
    read = masked_columns(lengths, batch, T_MAX)
    return [100 * part / read.total for part in (read.needed, read.beyond, read.ended)]


def static_cache(path: Path) -> None:
    """Both panels."""
    speeds = {batch: tokens_per_s(batch) for batch in BATCHES}
    at_64 = speeds[64]
    seats, pages = at_64[REFILLED] / at_64[GRAPHS], at_64[PAGED] / at_64[REFILLED]
    with canvas(
        path,
        (6.9, 10.6),
        title=f"64 at once: to fill seats again makes rows {seats:.0f} times faster, and pages "
        f"instead of rows another {pages:.1f} times",
        caption=f"{PREDICTED}: Qwen3-0.6B on an H200, {len(requests())} requests, all there at the "
        f"start. Rows: each step reads all {T_MAX:,} slots of each request. Static batches wait "
        "for their longest answer. In graphs, but for the last line.",
    ) as figure:
        left, right = figure.subplots(2, 1)
        _throughput(left, speeds)
        _reads(right)


def _throughput(axes: Axes, speeds: dict[int, dict[str, float]]) -> None:
    for name, (colour, style) in STYLES.items():
        points = [speeds[b][name] for b in BATCHES]
        axes.plot(BATCHES, points, style, color=colour, marker="o", label=name)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_ylim(20, None)  # room for the legend
    axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
    axes.set_xlabel("requests at once, at most")
    axes.set_ylabel("tokens a second")
    axes.legend(frameon=False, loc="lower right")


def _reads(axes: Axes) -> None:
    below, places = [0.0] * len(BATCHES), range(len(BATCHES))
    parts = [shares(batch) for batch in BATCHES]
    for number, (name, colour) in enumerate(PARTS.items()):
        part = [each[number] for each in parts]
        axes.bar(places, part, bottom=below, color=colour, label=name, width=0.8)
        below = [low + more for low, more in zip(below, part, strict=True)]
    for place, (needed, _, _) in zip(places, parts, strict=True):
        axes.text(
            place, needed + 1, f"{needed:.0f}", ha="center", va="bottom", color=hue.INK,
            weight="bold", fontsize=14,
        )  # fmt: skip
    axes.set_xticks(list(places), [str(batch) for batch in BATCHES])
    axes.set_xlabel("requests in a static batch, in rows")
    axes.set_ylabel("percent of the slots read")
    axes.set_ylim(0, 118)
    axes.legend(
        frameon=False, loc="upper center", ncols=3, columnspacing=0.8, handlelength=1, fontsize=14
    )


FIGURES = {"07-static.svg": static_cache}
