"""The last figure of chapter 7: what a graph gains for a server with pages and for one without.

Throughput of the requests of the shipped trace: by a static cache with rows, in batches that stay
together or with seats filled again, and by pages in either way, all on the same cost model.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

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
ROWS, ROWS_FILLED = "rows, finished rows stay", "rows, seats filled again"
PAGES, PAGES_FILLED = "pages, finished rows stay", "pages, seats filled again"


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


def costs() -> StepModel:
    """Of a step of Qwen3-0.6B on an H200."""
    return StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))


def together_us(batch: int) -> float:
    """All requests in pages and in graphs, in batches that stay until their longest answer."""
    steps, total = costs(), 0.0
    for first in range(0, len(requests()), batch):
        group = [(r.prompt_tokens, r.output_tokens) for r in requests()[first : first + batch]]
        prompts, rows = [prompt for prompt, _ in group], len(group)
        total += steps.itl_us("full", StepShape.mixed(prompts, prompts))
        for step in range(1, max(new for _, new in group)):
            keys = sum(prompt + step for prompt, new in group if step < new)
            total += steps.itl_us("full", StepShape(rows, rows, keys, keys))
    return total


def filled(batch: int, steps: StepModel, mode: str) -> float:
    """Tokens a second where a seat is filled again as soon as its request is done."""
    limits = SchedulerLimits(batch, BUDGET, 1 + batch * T_MAX // BLOCK, BLOCK, T_MAX)
    sizes = [] if mode == "NONE" else default_capture_sizes(batch, BUDGET)
    return replay(requests(), steps, limits, GraphDispatcher(mode, sizes, batch)).tokens_per_s


def in_rows(batch: int, mode: Mode) -> float:
    """Tokens a second in rows that are read whole, in batches that stay together."""
    lengths = [(r.prompt_tokens, r.output_tokens) for r in requests()]
    return 1e6 * written() / static_batches_us(lengths, costs(), mode, batch=batch, t_max=T_MAX)


def written() -> int:
    """Tokens of all answers."""
    return sum(r.output_tokens for r in requests())


def tokens_per_s(batch: int) -> dict[str, float]:
    """Of one batch size in graphs, by layout and by schedule."""
    whole = WholeRows(named_shape("qwen3-0.6b"), load_spec("h200"))
    return {
        ROWS: in_rows(batch, "full"),
        ROWS_FILLED: filled(batch, whole, "FULL"),
        PAGES: 1e6 * written() / together_us(batch),
        PAGES_FILLED: filled(batch, costs(), "FULL"),
    }


def gain(path: Path) -> None:
    """How many times as fast a graph makes either server, by requests at once."""
    rows = [in_rows(batch, "full") / in_rows(batch, "eager") for batch in BATCHES]
    pages = [filled(b, costs(), "FULL") / filled(b, costs(), "NONE") for b in BATCHES]
    at = BATCHES.index(64)
    with canvas(
        path,
        (6.9, 6.6),
        title=f"With 64 requests a graph makes the server with pages {pages[at]:.1f} times as "
        f"fast, and the one with rows {rows[at]:.1f} times",
        caption=f"{PREDICTED}: Qwen3-0.6B on an H200, {len(requests())} requests, all there at "
        f"the start. Rows: each step reads all {T_MAX:,} slots of each row, finished rows too. "
        "Pages: seats filled again.",
    ) as figure:
        axes = figure.subplots()
        for ys, colour, name, at_y in (
            (pages, hue.MARK, "pages,\nseats filled again", 5.2),
            (rows, hue.OTHER, "whole rows,\nfinished rows stay", 2.3),
        ):
            axes.plot(BATCHES, ys, color=colour, marker="o")
            axes.text(1 if ys is rows else 9, at_y, name, va="center", color=colour, weight="bold")
        axes.axhline(1, color=hue.OTHER, linewidth=1.2, linestyle=":")
        axes.set_xscale("log", base=2)
        axes.set_xticks(BATCHES, [str(batch) for batch in BATCHES])
        axes.set_ylim(0, None)
        axes.set_xlabel("requests at once, at most")
        axes.set_ylabel("times as fast with a graph")


FIGURES = {"07-static.svg": gain}
