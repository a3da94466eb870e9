"""What a benchmark measured: ITL against batch, and where a graph stops to pay.

In:  rows whose time is a result (`bench.rows.measured_steps`), and the measurement they are of; the
     picture is of the shape and context with the most batches.
Out: a file each. ValueError, which says what is missing, for too few points.

Every variant has a marker of its own, so that the figures can be read without colours. What the
emulator wrote is drawn too, under a watermark: it shows what the figure will look like.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mini_engine.bench.evidence import Measurement
from mini_engine.bench.rows import Row, curve, of_one_place
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas, doubling_ticks, log_ticks, percent_ticks

STYLES = {
    "hf-eager": (hue.SERIES[3], "-", "o"),
    "hf-reduce-overhead": (hue.SERIES[3], ":", "H"),
    "ours-eager": (hue.SERIES[0], "-", "^"),
    "ours-graph": (hue.SERIES[0], "-.", "D"),
    "ours-graph-k8": (hue.SERIES[0], ":", "d"),
    "compile-default": (hue.SERIES[1], "-", "<"),
    "compile-reduce-overhead": (hue.SERIES[1], "--", ">"),
    "compile-max-autotune": (hue.SERIES[1], ":", "p"),
    "graph-9": (hue.SERIES[2], "-", "P"),
    "graph-5": (hue.SERIES[4], "-", "X"),
    "graph-5-pdl": (hue.SERIES[4], "--", "*"),
    "graph-5-pdl-k8": (hue.SERIES[4], ":", "h"),
}
EAGER, GRAPH = "ours-eager", "ours-graph"
PAYS = 0.05  # of eager's ITL: what a graph saves while it pays


def itl_against_batch(steps: Sequence[Row], path: Path | str, origin: Measurement) -> None:
    """A line for each variant, and the floor."""
    steps = [step for step in of_one_place(steps) if step.variant != "null"]  # which is noise
    there = {step.variant for step in steps}
    variants = [v for v in [*STYLES, *sorted(there - set(STYLES))] if len(curve(steps, v)) > 1]
    if not variants:
        raise ValueError("it takes a variant with results at two batches or more")
    floor = floor_curve(steps, origin.figures["copy_bandwidth_gb_s"]["median"])
    caption = f"{_of(steps, origin)} Floor: weights and KV, read once as fast as a copy."
    batches, least = [batch for batch, _ in floor], min(steps, key=lambda s: s.batch).batch
    first = sorted((s for s in steps if s.batch == least), key=lambda s: s.itl_us)
    best, slowest = first[0], first[-1]
    times = f", {slowest.itl_us / best.itl_us:.1f}× as fast as {slowest.variant}"
    finding = (
        f"Batch {least}: {best.variant} takes {best.itl_us / 1e3:.3g} ms a token"
        f"{times if slowest is not best else ''}; the floor is {floor[0][1] / 1e3:.3g} ms"
    )
    with _page(path, (14, 8), finding, caption, origin) as figure:
        axes, beside = figure.subplots(1, 2, width_ratios=[2.9, 1])
        for variant in variants:
            colour, line, marker = STYLES.get(variant, (hue.INK, "-", "+"))
            _with_bars(
                axes, curve(steps, variant), label=variant, capsize=3, elinewidth=1, color=colour,
                linestyle=line, marker=marker, markersize=9, linewidth=1.8,
            )  # fmt: skip
        axes.plot(
            batches, [us / 1e3 for _, us in floor], label="physical floor", color=hue.INK,
            linewidth=3, linestyle=(0, (1, 1)),
        )  # fmt: skip
        doubling_ticks(axes, batches[0], batches[-1], "batch (requests that decode together)")
        axes.set_xlim(batches[0] * 0.9, batches[-1] * 1.12)
        log_ticks(axes, "ITL (ms)")
        beside.set_axis_off()
        beside.legend(*axes.get_legend_handles_labels(), loc="upper left", handlelength=2.6)


def measured_crossover(steps: Sequence[Row], path: Path | str, origin: Measurement) -> None:
    """Our plain model eager and in one graph, measured and predicted; below, what graphs save."""
    steps = of_one_place(steps)
    graphs = {step.batch: step for step in curve(steps, GRAPH)}
    pairs = [(e, graphs[e.batch]) for e in curve(steps, EAGER) if e.batch in graphs]
    if len(pairs) < 2:
        raise ValueError(
            f"it takes {EAGER} and {GRAPH} with results at two batches, there are {len(pairs)}"
        )
    batches = [eager.batch for eager, _ in pairs]
    saved = [1 - graph.itl_us / eager.itl_us for eager, graph in pairs]
    told = [1 - graph.predicted_us / eager.predicted_us for eager, graph in pairs]
    marks = at, _ = crossing_batch(batches, saved), crossing_batch(batches, told)
    places = [f"beyond batch {batches[-1]}" if at is None else f"at batch {at:.0f}" for at in marks]
    caption = (
        f"{_of(steps, origin)} Predicted with {origin.figures['spec']}. The crossover lies where "
        f"a graph saves less than {PAYS:.0%}, on a straight line between the batches measured: "
        f"measured {places[0]}, predicted {places[1]}."
    )
    pays = "at every batch measured" if at is None else f"up to a batch of about {at:.0f}"
    pays = "at no batch measured" if at == batches[0] else pays
    finding = (
        f"A graph pays {pays}: it saves {saved[0]:.0%} of eager's time at batch {batches[0]}, "
        f"{saved[-1]:.0%} at {batches[-1]}"
    )
    with _page(path, (13, 11), finding, caption, origin) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
        # rings around the points of the graph, so that both are seen where they agree
        for i, (name, mode) in enumerate(((EAGER, "eager"), (GRAPH, "full"))):
            points, colour = [pair[i] for pair in pairs], hue.MODE_COLOURS[mode]
            _with_bars(
                above, points, color=colour, linestyle="none", marker="os"[i], capsize=4,
                markersize=(9, 14)[i], elinewidth=1.5, markeredgewidth=2,
                markerfacecolor=(colour, "none")[i], label=f"{name}, measured",
            )  # fmt: skip
            predicted_ms = [p.predicted_us / 1e3 for p in points]
            line, label = ("-", "--")[i], f"{name}, predicted"
            above.plot(batches, predicted_ms, line, color=colour, label=label)
        below.plot(batches, saved, "D", color=hue.INK, markersize=9, label="measured")
        below.plot(batches, told, "-.", color=hue.INK, linewidth=1.8, label="predicted")
        below.axhline(PAYS, color=hue.SOFT, linewidth=1)
        percent_ticks(below, "saved of eager")
        log_ticks(above, "ITL (ms)")
        doubling_ticks(below, batches[0], batches[-1], "batch (requests that decode together)")
        below.set_xlim(batches[0] * 0.9, batches[-1] * 1.12)
        for axes in (above, below):
            for at, line in zip(marks, ("-", "-."), strict=True):
                if at is not None and batches[0] < at <= batches[-1]:
                    axes.axvline(at, color=hue.INK, linewidth=1.5, linestyle=line)
            axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=2, borderaxespad=0.2)


def floor_curve(steps: Sequence[Row], copy_gb_s: float) -> list[tuple[int, float]]:
    """(batch, µs): no step is faster than its bytes at a copy's speed. Batch rising."""
    moved = {step.batch: step.bytes_to_move for step in steps}
    return [(batch, moved[batch] / copy_gb_s / 1e3) for batch in sorted(moved)]


def crossing_batch(batches: Sequence[int], saved: Sequence[float]) -> float | None:
    """The batch beyond which a graph saves less than PAYS, interpolated between measured batches
    over log(batch). None when it still pays at the last one, the first batch when it never does.
    `saved`: shares of eager's ITL, batch rising."""
    i = max((i for i, share in enumerate(saved) if share >= PAYS), default=None)
    if i is None:
        return float(batches[0])
    if i == len(batches) - 1:
        return None
    ends = np.log([batches[i + 1], batches[i]])
    return math.exp(np.interp(PAYS, [saved[i + 1], saved[i]], ends))


def _with_bars(axes: Axes, points: Sequence[Row], **style: Any) -> None:
    """Medians with their intervals, in ms."""
    times_ms = [p.itl_us / 1e3 for p in points]
    down = [max(0.0, p.itl_us - p.itl.low) / 1e3 for p in points]
    up = [max(0.0, p.itl.high - p.itl_us) / 1e3 for p in points]
    axes.errorbar([p.batch for p in points], times_ms, yerr=[down, up], **style)


@contextmanager
def _page(
    path: Path | str, size: tuple[float, float], finding: str, caption: str, origin: Measurement
) -> Iterator[Figure]:
    """A canvas; where the numbers are no evidence, its title and a watermark say so."""
    title = f"Emulated, no evidence: {finding}" if origin.emulated else finding
    with canvas(path, size, title=title, caption=caption) as figure:
        yield figure
        if origin.emulated:  # the data stay readable through it
            figure.text(
                0.5, 0.5, "emulated: no evidence", size=64, rotation=30, ha="center", va="center",
                color=hue.OTHER, alpha=0.35, zorder=10,
            )  # fmt: skip


def _of(steps: Sequence[Row], origin: Measurement) -> str:
    """What, on what, when and how."""
    first, how = steps[0], origin.figures
    who = "Emulated on a CPU: no evidence about any GPU"
    who = who if origin.emulated else f"Measured on {origin.gpu}"
    return (
        f"{first.shape}, {first.context:,} tokens of context. {who}, {origin.date[:10]}, commit "
        f"{origin.commit}; medians of {how['rounds']} laps of {how['steps']} dependent steps."
    )
