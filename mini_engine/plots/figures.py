"""Two figures: ITL against batch, and the rungs that the steps of a server ran at.

In:  an `ItlCurve`; the steps of a server by rung (`serving.report`).
Out: a PNG each.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from mini_engine.plots.canvas import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    MODE_COLOURS,
    PREDICTED,
    VERMILION,
    canvas,
    doubling_ticks,
    percent_ticks,
)
from mini_engine.step.curves import ItlCurve

RUN_TIME_COLOURS = {"NONE": VERMILION, "PIECEWISE": GREEN, "FULL": BLUE}


# ---------------------------------------------------------------- ITL against batch


def itl_curve(curve: ItlCurve, path: Path | str) -> None:
    """ITL on doubly logarithmic axes, and below it what graphs save of it, rung by rung."""
    if not curve.points:
        raise ValueError("the curve has no points: compute it for batch 1 at least")
    caption = (
        f"{PREDICTED}: decode steps of {curve.shape} on {curve.spec}, host {curve.host}, engine "
        f"{curve.engine}, op list {curve.style}, {curve.context:,} tokens of context each. Graphs "
        f"run padded, at the next of {len(curve.ladder)} rungs; above {curve.ladder.top}, eager."
    )
    with canvas(path, (13, 10), title=curve.finding(), caption=caption) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
        _itl(above, curve)
        _saved(below, curve)
        batches = [point.batch for point in curve.points]
        below.set_xlim(batches[0] * 0.95, max(batches[-1], 2) * 1.05)
        doubling_ticks(below, 1, batches[-1])
        below.set_xlabel("batch (requests that decode together)")


def _itl(axes: Axes, curve: ItlCurve) -> None:
    batches = [point.batch for point in curve.points]
    lines = (
        ("eager", "eager", "-", [point.eager for point in curve.points]),
        ("piecewise", "piecewise graphs", "--", [point.piecewise for point in curve.points]),
        ("full", "one full graph", "-", [point.full for point in curve.points]),
    )
    for mode, label, style, steps in lines:
        itl_ms = [step.itl_us / 1e3 for step in steps]
        axes.plot(batches, itl_ms, style, color=MODE_COLOURS[mode], label=label)
    floor = [point.floor_us / 1e3 for point in curve.points]
    axes.plot(batches, floor, ":", color=BLACK, label="floor: weights and KV, read once")
    axes.fill_between(batches, floor, [min(floor) * 0.5] * len(floor), color="#F2F2F2")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    low, high = min(floor) * 0.8, max(p.eager.itl_us for p in curve.points) / 1e3
    axes.set_ylim(low, high * (high / low) ** 0.2)  # room for the crossover's label
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.yaxis.set_minor_formatter(  # 2 and 5 between the decades
        FuncFormatter(lambda value, _: f"{value:g}" if f"{value:e}"[0] in "25" else "")
    )
    axes.set_ylabel("ITL (ms)")
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
    if 1 < curve.crossover <= batches[-1]:
        axes.axvline(curve.crossover, color=BLACK, linewidth=1.5)
        right = curve.crossover**2 > batches[-1]  # beyond the middle of the axis
        axes.annotate(
            f"crossover: batch {curve.crossover}\nleft: issuing the kernels takes longer\n"
            "right: running them takes longer",
            xy=(curve.crossover, 0.98), xycoords=("data", "axes fraction"),
            xytext=(-10 if right else 10, 0), textcoords="offset points",
            ha="right" if right else "left", va="top",
        )  # fmt: skip


def _saved(axes: Axes, curve: ItlCurve) -> None:
    """The share of eager's ITL that graphs save, and the rungs that they run at."""
    batches = [point.batch for point in curve.points]
    whole = [point.saved for point in curve.points]
    pieces = [1 - point.piecewise.itl_us / point.eager.itl_us for point in curve.points]
    axes.plot(batches, pieces, "--", color=MODE_COLOURS["piecewise"])
    axes.plot(batches, whole, "-", color=MODE_COLOURS["full"])
    low = min(0.0, *pieces, *whole)
    rungs = [rung for rung in curve.ladder if rung <= batches[-1]]
    tick = 0.06 * (max(whole) - low or 1)
    axes.vlines(rungs, low - 2 * tick, low - tick, color=GREY, linewidth=1.5)
    axes.set_ylim(low - 2.2 * tick, None)
    percent_ticks(axes)
    axes.set_ylabel("saved of eager")
    axes.text(
        0.005, 0.17, "ticks below: rungs of the ladder", transform=axes.transAxes,
        ha="left", va="bottom", color="#505050",
    )  # fmt: skip
    if 1 < curve.crossover <= batches[-1]:
        axes.axvline(curve.crossover, color=BLACK, linewidth=1.5)


# ---------------------------------------------------------------- what a server ran


def rung_histogram(
    steps_by_rung: Mapping[str, Mapping[int, int]],
    path: Path | str,
    *,
    caption: str = PREDICTED,
    title: str | None = None,
) -> None:
    """The share of steps that ran at each rung, for each run-time mode.

    `steps_by_rung`: mode -> padded rows -> steps, as in a serve report. Eager steps may have any
    number of rows, so they are grouped by powers of two.
    """
    total = sum(sum(rungs.values()) for rungs in steps_by_rung.values())
    if not total:
        raise ValueError("no steps: give a report of a server that ran some")
    with canvas(
        path, (13, 7), title=title or _steps_finding(steps_by_rung), caption=caption
    ) as fig:
        axes = fig.subplots()
        top = 2
        for mode, colour in RUN_TIME_COLOURS.items():
            steps = _by_power_of_two(steps_by_rung, mode)
            if steps:
                shares = [count / total for count in steps.values()]
                label = f"{mode}: {sum(shares):.0%} of steps" + (
                    ", up to each power of two" if mode == "NONE" else ""
                )
                axes.vlines(list(steps), 0, shares, color=colour, linewidth=4, label=label)
                top = max(top, *steps)
        axes.set_xscale("log", base=2)
        axes.set_xlim(0.9, top * 1.1)
        doubling_ticks(axes, 1, top)
        axes.set_ylim(0, None)
        percent_ticks(axes)
        axes.set_xlabel("rows that a step ran with (tokens, padding included)")
        axes.set_ylabel("share of all steps")
        axes.legend(loc="upper right")


def _by_power_of_two(steps_by_rung: Mapping[str, Mapping[int, int]], mode: str) -> dict[int, int]:
    """Rung -> steps of one mode; eager sizes are rounded up to a power of two."""
    steps: dict[int, int] = {}
    for rows, count in sorted(steps_by_rung.get(mode, {}).items()):
        at = 1 << (rows - 1).bit_length() if mode == "NONE" else rows
        steps[at] = steps.get(at, 0) + count
    return steps


def _steps_finding(steps_by_rung: Mapping[str, Mapping[int, int]]) -> str:
    total = sum(sum(rungs.values()) for rungs in steps_by_rung.values())
    eager = sum(steps_by_rung.get("NONE", {}).values())
    ran = [(count, rows, mode) for mode, r in steps_by_rung.items() for rows, count in r.items()]
    count, rows, mode = max(ran)
    return (
        f"{1 - eager / total:.0%} of steps ran in graphs; the most common were "
        f"{mode} at {rows} row{'s' * (rows != 1)} ({count / total:.0%})"
    )
