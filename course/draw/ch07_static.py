"""The last figure of chapter 7: tokens a second without pages, and what the reads are for.

Above: throughput against batch for the requests of the shipped trace, by a static cache with and
without graphs, and by the paged engine on the same cost model. Below: what slots are read for.
"""

from __future__ import annotations

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
from mini_engine.step.step_model import StepModel

T_MAX, BUDGET, BLOCK = 4096, 8192, 16
BATCHES = (1, 4, 16, 64, 256)
PAGED, GRAPHS, EAGER = "pages, graphs", "static cache, graphs", "static cache, eager"
STYLES = {PAGED: (hue.WITH, "-"), GRAPHS: (hue.WITH, "--"), EAGER: (hue.EAGER, "--")}
PARTS = {"for a text": hue.USED, "behind a text": hue.EMPTY, "in a finished row": hue.GONE}


@cache
def requests() -> tuple[TraceRequest, ...]:
    """Those of the shipped trace that fit into a row, all waiting at the start."""
    every = read_trace(SHIPPED_TRACE)
    fits = [r for r in every if r.prompt_tokens + r.output_tokens <= T_MAX]
    return tuple(TraceRequest(0.0, r.prompt_tokens, r.output_tokens) for r in fits)


def tokens_per_s(batch: int) -> dict[str, float]:
    """Of one batch size, by each way."""
    costs = StepModel(named_shape("qwen3-0.6b"), load_spec("h200"))
    lengths = [(r.prompt_tokens, r.output_tokens) for r in requests()]
    written = sum(new for _, new in lengths)
    limits = SchedulerLimits(batch, BUDGET, 1 + batch * T_MAX // BLOCK, BLOCK, T_MAX)
    dispatcher = GraphDispatcher("FULL", default_capture_sizes(batch, BUDGET), batch)
    found = {PAGED: replay(requests(), costs, limits, dispatcher).tokens_per_s}
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
    gain = speeds[1][GRAPHS] / speeds[1][EAGER]
    lost = speeds[64][PAGED] / speeds[64][GRAPHS]
    with canvas(
        path,
        (6.9, 10.6),
        title=f"A graph makes a static cache {gain:.0f} times faster for one request; for 64, "
        f"pages with seats filled again are {lost:.0f} times faster",
        caption=f"{PREDICTED}: Qwen3-0.6B on an H200, {len(requests())} requests of "
        f"{SHIPPED_TRACE.name}, all there at the start; captures are not counted. Static: a batch "
        f"waits for its longest answer, each step reads all {T_MAX:,} slots of a row. Pages: a "
        "request joins and leaves at any step.",
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
    axes.set_xlabel("requests in a batch of the static cache")
    axes.set_ylabel("percent of the slots read")
    axes.set_ylim(0, 118)
    axes.legend(
        frameon=False, loc="upper center", ncols=3, columnspacing=0.8, handlelength=1, fontsize=14
    )


FIGURES = {"07-static.svg": static_cache}
