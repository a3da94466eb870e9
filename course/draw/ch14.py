"""Figures of chapter 14: what a polite client does not see, what each stopwatch counts, how far off
predictions are, and the two pictures of `python -m mini_engine validate`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from course.draw import ledger
from mini_engine.plots import hue
from mini_engine.plots.canvas import canvas
from mini_engine.plots.figures import errors_by_class, predicted_against_measured
from mini_engine.serving.report import percentile
from mini_engine.sim.device import Device
from mini_engine.sim.launch import kernel
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.cards import load_spec
from mini_engine.validate.points import (
    SHIPPED_POINTS,
    Row,
    Sheets,
    by_class,
    read_kept,
    read_points,
    rows_of,
)

COLOURS = {"launch": hue.LAUNCH, "wait": hue.IDLE, "kernel": hue.KERNEL}
LAUNCHES = 4
REQUESTS, EVERY_MS, SERVICE_MS, STALL_MS, STALLED = 1000, 4.0, 2.0, 400.0, 500


@kernel()
def double(out: np.ndarray, x: np.ndarray) -> None:
    """out = 2 x."""
    np.multiply(x, 2, out=out)


def four_launches(floats: int) -> list[TraceEvent]:
    """Four launches of plain PyTorch over arrays of so many floats, and a read-back."""
    device = Device(load_spec("h200", engine="transformers"), record=True)
    x, out = device.empty(floats), device.empty(floats)
    for _ in range(LAUNCHES):
        device.launch(double, out, x)
    device.read(out)
    return device.timeline


def latencies_ms(*, by_plan: bool) -> list[float]:
    """The chapter's toy server: one at a time, one stall. By plan: sent when due."""
    free_at, seen = 0.0, []
    for i in range(REQUESTS):
        due = EVERY_MS * i
        sent = due if by_plan else max(due, free_at)
        service = SERVICE_MS + (STALL_MS if i == STALLED else 0.0)
        free_at = max(sent, free_at) + service
        seen.append(free_at - sent)
    return seen


def coordinated_omission(path: Path) -> None:
    """The same server and the same stall, seen by two clients."""
    polite, by_plan = latencies_ms(by_plan=False), latencies_ms(by_plan=True)
    with canvas(
        path,
        (6.9, 6.96),
        title=f"One stall: p99 is {percentile(polite, 99):.0f} ms for a client that\n"
        f"waits its turn, {percentile(by_plan, 99):.0f} ms for users",
        caption=f"Computed: {SERVICE_MS:g} ms a request, once {STALL_MS:g} ms more; one is due "
        f"every {EVERY_MS:g} ms.",
    ) as figure:
        panels = figure.subplots(2, 1, sharex=True, sharey=True)
        told = (
            (polite, hue.OTHER, "sent when the last answer is there"),
            (by_plan, hue.MARK, "sent when it is due"),
        )
        for axes, (seen, colour, name) in zip(panels, told, strict=True):
            axes.plot(range(REQUESTS), seen, color=colour, linewidth=3)
            p99 = percentile(seen, 99)
            axes.axhline(p99, color=hue.INK, linewidth=1.5, linestyle="--")
            slow = sum(ms > 2 * SERVICE_MS for ms in seen)
            axes.text(0, p99 + 9, f"p99 = {p99:.0f} ms", weight="bold")
            axes.set_title(f"{name}: {slow} slow of {REQUESTS:,}")
            axes.set(ylabel="latency (ms)", ylim=(0, STALL_MS * 1.18))
        panels[1].set_xlabel("request")


# ---------------------------------------------------------------- four stopwatches


def stopwatches(events: Sequence[TraceEvent]) -> dict[str, list[tuple[float, float]]]:
    """Name -> the stretches of time that it counts (µs), for launches and a synchronisation."""
    issued_us = max(e.end_us for e in events if e.category == "launch")
    runs = [(e.start_us, e.end_us) for e in events if e.lane == GPU]
    return {
        "wall clock, no sync": [(0.0, issued_us)],
        "between two events": [(0.0, runs[-1][1])],
        "wall clock, with sync": [(0.0, max(e.end_us for e in events))],
        "profiler": runs,
    }


def four_stopwatches(path: Path) -> None:
    """What each way to time counts, on the two lanes of chapter 4."""
    with canvas(
        path,
        (6.9, 9.36),
        title="Four stopwatches, four answers,\neach to a question of its own",
        caption="Predicted: four launches and a synchronisation, as in chapter 1. The CPU "
        "notices the end 10 µs late.",
    ) as figure:
        examples = {"short kernels": four_launches(2**20), "long kernels": four_launches(2**24)}
        panels = figure.subplots(2, 1)
        right_us = max(e.end_us for e in examples["long kernels"]) * 1.7
        for axes, (name, events) in zip(panels, examples.items(), strict=True):
            axes.set_title(name)
            axes.set(xlim=(0, right_us), ylim=(-0.1, 6.1))
            _stopwatches(axes, events)
        panels[0].tick_params(axis="x", labelbottom=False)
        panels[1].set_xlabel("time (µs)")


def _stopwatches(axes: Axes, events: Sequence[TraceEvent]) -> None:
    for event in events:
        box = Rectangle(
            (event.start_us, 5.08 if event.lane == CPU else 4.08), event.duration_us, 0.84
        )
        box.set(facecolor=COLOURS[event.category], edgecolor=hue.PAPER, linewidth=1)
        axes.add_patch(box)
    for y, (name, stretches) in zip((3, 2, 1, 0), stopwatches(events).items(), strict=True):
        total_us = sum(end - start for start, end in stretches)
        for start, end in stretches:
            axes.plot([start, end], [y + 0.5] * 2, "-|", color=hue.INK, markersize=12, linewidth=2)
        axes.text(stretches[-1][1] + 2, y + 0.5, f"{total_us:.0f} µs: {name}", va="center", size=14)
    axes.set_yticks([4.5, 5.5], [GPU, CPU], weight="bold")
    axes.tick_params(axis="y", length=0)
    axes.grid(visible=False, axis="y")


# ---------------------------------------------------------------- held against others' numbers


def shipped_rows() -> list[Row]:
    """Every published point beside its prediction, as `validate` has them."""
    sheets = Sheets.shipped()
    points, _ = read_points(SHIPPED_POINTS, sheets)
    return rows_of(points, sheets, read_kept()["left_out_ms"])


def validate_points(path: Path) -> None:
    """Predicted against measured."""
    predicted_against_measured(shipped_rows(), path)


def held_out(path: Path) -> None:
    """Predicted by a fit without the source, against measured: eager steps and graphs."""
    of = [row for row in shipped_rows() if row.left_out_error is not None]
    caption = (
        "Measured by others; each source predicted by a fit without it. Grey: a tenth off at most."
    )
    with canvas(
        path,
        (6.9, 7.36),
        title="Sources not seen: graphs come out well, eager steps do not",
        caption=caption,
    ) as figure:
        axes = figure.subplots()
        ends = [0.5, 100.0]
        axes.fill_between(
            ends, [e / 1.1 for e in ends], [e * 1.1 for e in ends], color=hue.PANEL, lw=0
        )
        for mode, colour, told in (("NONE", hue.EAGER, "eager"), ("FULL", hue.FULL, "one graph")):
            rows = [row for row in of if row.launched == mode]
            measured = [row.point.itl_ms for row in rows]
            predicted = [row.point.itl_ms * (1 + (row.left_out_error or 0.0)) for row in rows]
            axes.plot(measured, predicted, "o", color=colour, alpha=0.55, label=told)
        odd = [row for row in of if row.point.host == "mlenergy-b200"]
        axes.plot(
            [row.point.itl_ms for row in odd],
            [row.point.itl_ms * (1 + (row.left_out_error or 0.0)) for row in odd],
            "o", markersize=11, fillstyle="none", color=hue.INK, label="ML.ENERGY, B200",
        )  # fmt: skip
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_ticks([1, 3, 10, 30], ["1", "3", "10", "30"])
        axes.minorticks_off()
        axes.set_xlabel("measured (ms)")
        axes.set_ylabel("predicted unseen (ms)")
        axes.legend(loc="upper left")


def validate_errors(path: Path) -> None:
    """The errors, class by class."""
    rows = shipped_rows()
    errors_by_class(rows, by_class(rows), path)


LAUNCHED = {"transformers": "NONE", "an engine, eager": "NONE", "… in pieces": "PIECEWISE"}


def bar_intervals(path: Path) -> None:
    """The bars of this chapter."""
    few = sum((r.launched, r.point.batch) == ("PIECEWISE", 1) for r in shipped_rows())
    caption = (
        "Predicted: the ledger. Line: where four of five measured steps lie around what a fit that "
        f"had not seen them predicts. In pieces: only {few} points, so do not trust that line."
    )
    title = "Nobody knows the eager bars to better\nthan a factor of two"
    with_intervals(path, ledger.rows_of(14), 5.36, title, caption)


def with_intervals(
    path: Path, bars: Sequence[ledger.Bar], tall: float, title: str, caption: str
) -> None:
    """Bars of the ledger, each with where four of five measured steps like it lie."""
    spec = load_spec("h200")
    with canvas(path, (6.9, tall), title=title, caption=caption) as figure:
        axes = figure.subplots()
        names = []
        for row, bar in enumerate(bars):
            left = 0.0
            for part in reversed(ledger.PARTS):
                wide = bar.parts_us[part] / 1e3
                axes.barh(row, wide, left=left, color=ledger.COLOURS[part])
                left += wide
            found = spec.interval(bar.ms, LAUNCHED.get(bar.label, "FULL"))
            low, high = found or (bar.ms, bar.ms)
            axes.plot([low, high], [row, row], "-|", color=hue.INK, markersize=16, linewidth=2)
            names.append(f"{bar.label}\n{bar.told} ({low:.2g} to {high:.2g})")
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
        axes.set_xlim(0, 40)
        axes.set_xlabel("time of one token (ms)")
        axes.grid(visible=False, axis="y")


FIGURES = {
    "14-coordinated-omission.svg": coordinated_omission,
    "14-four-stopwatches.svg": four_stopwatches,
    "14-held-out.svg": held_out,
    "14-intervals.svg": bar_intervals,
    "14-validate-points.svg": validate_points,
    "14-validate-errors.svg": validate_errors,
}
