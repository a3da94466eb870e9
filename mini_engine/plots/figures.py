"""Predictions: ITL against batch, against what others have measured, fleets, and bars of steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.patches import Patch

from mini_engine.plots import hue
from mini_engine.plots.canvas import PREDICTED, canvas, doubling_ticks, log_ticks, percent_ticks
from mini_engine.step.curves import ItlCurve
from mini_engine.step.run import WAYS
from mini_engine.validate.points import Row, Summary

RUN_TIME_COLOURS = {name: hue.MODE_COLOURS[way] for name, way in WAYS.items()}
# Where the time of a step goes: first a kernel runs, then the GPU waits.
RUNS, WAITS = "a kernel runs", "no kernel runs"
LAUNCHES, OTHER_WORK = "idle: the CPU is in a launch call", "idle: the CPU does other work"
PARTS = {RUNS: hue.KERNEL, WAITS: hue.IDLE, LAUNCHES: hue.CALL, OTHER_WORK: hue.LAUNCH}
PHONE_INCHES = 6.9  # 14 points are 10 pixels where the picture is 358 wide
LINES = {"eager": "eager", "piecewise": "piecewise graphs", "full": "one full graph"}


def itl_curve(curve: ItlCurve, path: Path | str) -> None:
    """ITL on doubly logarithmic axes, and below it what graphs save of it, rung by rung."""
    spec = curve.spec
    caption = (
        f"{PREDICTED}: decode steps of {curve.shape} on {spec.name}, host {spec.host}, engine "
        f"{spec.engine}, op list {spec.ops}, {curve.context:,} tokens of context each. Graphs "
        f"run padded, at the next of {len(curve.ladder)} rungs; above {curve.ladder.top}, eager."
    )
    batches = [point.batch for point in curve.points]
    with canvas(path, (13, 10), title=curve.finding(), caption=caption) as figure:
        above, below = figure.subplots(2, 1, sharex=True, height_ratios=[2.4, 1])
        _itl(above, curve, batches)
        _saved(below, curve, batches)
        doubling_ticks(below, 1, batches[-1], "batch (requests that decode together)")
        below.set_xlim(batches[0] * 0.95, max(batches[-1], 2) * 1.05)
        if 1 < curve.crossover <= batches[-1]:
            for axes in (above, below):
                axes.axvline(curve.crossover, color=hue.INK, linewidth=1.5)


def _itl(axes: Axes, curve: ItlCurve, batches: Sequence[int]) -> None:
    for mode, label in LINES.items():
        itl_ms = [getattr(point, mode).itl_us / 1e3 for point in curve.points]
        style = "--" if mode == "piecewise" else "-"
        axes.plot(batches, itl_ms, style, color=hue.MODE_COLOURS[mode], label=label)
    floor = [point.floor_us / 1e3 for point in curve.points]
    axes.plot(batches, floor, ":", color=hue.INK, label="floor: weights and KV, read once")
    axes.fill_between(batches, floor, [min(floor) * 0.5] * len(floor), color=hue.PANEL)
    log_ticks(axes, "ITL (ms)")
    low, high = min(floor) * 0.8, max(p.eager.itl_us for p in curve.points) / 1e3
    axes.set_ylim(low, high * (high / low) ** 0.2)  # room for the crossover's label
    axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=4, borderaxespad=0.2)
    if 1 < curve.crossover <= batches[-1]:
        right = curve.crossover**2 > batches[-1]  # beyond the middle of the axis
        axes.annotate(
            f"crossover: batch {curve.crossover}\nleft: issuing the kernels takes longer\n"
            "right: running them takes longer",
            xy=(curve.crossover, 0.98), xycoords=("data", "axes fraction"),
            xytext=(-10 if right else 10, 0), textcoords="offset points",
            ha="right" if right else "left", va="top",
        )  # fmt: skip


def _saved(axes: Axes, curve: ItlCurve, batches: Sequence[int]) -> None:
    whole = [point.saved for point in curve.points]
    pieces = [1 - point.piecewise.itl_us / point.eager.itl_us for point in curve.points]
    axes.plot(batches, pieces, "--", color=hue.MODE_COLOURS["piecewise"])
    axes.plot(batches, whole, "-", color=hue.MODE_COLOURS["full"])
    low = min(0.0, *pieces, *whole)
    rungs = [rung for rung in curve.ladder if rung <= batches[-1]]
    tick = 0.06 * (max(whole) - low or 1)
    axes.vlines(rungs, low - 2 * tick, low - tick, color=hue.OTHER, linewidth=1.5)
    axes.set_ylim(low - 2.2 * tick, None)
    percent_ticks(axes, "saved of eager")
    axes.text(
        0.005, 0.17, "ticks below: rungs of the ladder", transform=axes.transAxes,
        ha="left", va="bottom", color=hue.SOFT,
    )  # fmt: skip


def predicted_against_measured(rows: Sequence[Row], path: Path | str) -> None:
    """Both axes logarithmic; a colour and a shape for how a step is launched."""
    sources = {row.point.source for row in rows}
    inside = sum(abs(row.error) <= 0.1 for row in rows) / len(rows)
    title = f"{inside:.0%} of {len(rows)} measured decode steps are predicted within 10%"
    caption = (
        f"Measured by others, {len(sources)} sources; predicted from card, host and engine. "
        "Bars: 80% intervals, by mode and batch, from sources left out of the fit. "
        "Grey: within 10%."
    )
    with canvas(path, (PHONE_INCHES, 8.6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        values = [v for row in rows for v in (row.point.itl_ms, row.predicted_ms)]
        ends = [min(values) / 1.3, max(values) * 1.3]
        axes.fill_between(
            ends, [e / 1.1 for e in ends], [e * 1.1 for e in ends], color=hue.PANEL, lw=0
        )
        axes.plot(ends, ends, color=hue.INK, lw=1)
        for shape, (mode, colour) in zip("os^", RUN_TIME_COLOURS.items(), strict=True):
            of = [row for row in rows if row.launched == mode]
            x, y = [r.point.itl_ms for r in of], [r.predicted_ms for r in of]
            below = [max(0, row.predicted_ms - (row.low_ms or row.predicted_ms)) for row in of]
            bars = [below, [max(0, (row.high_ms or 0) - row.predicted_ms) for row in of]]
            axes.errorbar(x, y, yerr=bars, fmt="none", ecolor=colour, alpha=0.25, lw=1.5)
            axes.scatter(
                x, y, marker=shape, s=45, color=colour, edgecolors=hue.PAPER, label=mode, zorder=3
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        axes.set(xlabel="measured ITL, ms", ylabel="predicted ITL, ms")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.legend(loc="upper left")


def errors_by_class(rows: Sequence[Row], summaries: Sequence[Summary], path: Path | str) -> None:
    """One line a class: each point's error, the median, and the median with its source left out."""
    ordered = sorted(summaries, key=lambda s: s.median_error, reverse=True)
    title = f"Farthest off: {ordered[0].name}, {ordered[0].median_error:.0%} in the median"
    caption = (
        "Dots: predicted over measured, less one. Bars: the median of a class. Diamonds: "
        "each source predicted by a fit that has not seen it."
    )
    with canvas(path, (PHONE_INCHES, 10.6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        axes.axvspan(-0.1, 0.1, color=hue.PANEL, lw=0)
        axes.axvline(0, color=hue.INK, lw=1)
        for y, one in enumerate(ordered):
            of = [row for row in rows if row.kind == one.name]
            colour = RUN_TIME_COLOURS[of[0].launched]
            others = [r.left_out_error for r in of if r.left_out_error is not None]
            beside = [y - 0.22] * len(others)
            axes.scatter(others, beside, marker="D", s=40, facecolors="none", edgecolors=hue.OTHER)
            axes.scatter([r.error for r in of], [y] * len(of), s=60, color=colour, alpha=0.7)
            axes.plot([one.bias] * 2, [y - 0.3, y + 0.3], color=colour)
        axes.set_yticks(range(len(ordered)), [f"{s.name} ({s.points})" for s in ordered])
        axes.xaxis.set_major_formatter(lambda share, _: f"{100 * share:+.0f}%")
        axes.set_xlabel("error of the prediction")


def fleet_costs(
    points: Sequence[tuple[float, float, bool, str]], title: str, what: str, path: Path | str
) -> None:
    """(cost an hour, p99 of TTFT in ms, whether enough users are content, cards) of each fleet, and
    the Pareto front: those that no other beats in both."""
    caption = f"{PREDICTED}: {what}. The line joins those that no other beats in cost and in p99."
    with canvas(path, (12, 8), title=title, caption=caption) as figure:
        axes = figure.subplots()
        for content, colour, label in (
            (False, hue.IDLE, "too few are content"),
            (True, hue.MARK, "content"),
        ):
            some = [point for point in points if point[2] is content]
            x, y = [point[0] for point in some], [point[1] for point in some]
            axes.scatter(x, y, s=60, color=colour, edgecolors=hue.OTHER, label=label, zorder=2)
        front = pareto_front([point[:2] for point in points])
        axes.plot(*zip(*front, strict=True), "-", color=hue.INK, linewidth=1.5, zorder=1)
        names = {point[:2]: point[3] for point in reversed(points)}
        for place in (*front[:1], *front[-1:]) if len(front) > 1 else front:
            axes.annotate(names[place], place, xytext=(8, 8), textcoords="offset points")
        axes.set_xlabel("cost an hour")
        log_ticks(axes, "TTFT p99 (ms)")
        axes.legend(loc="upper right")


def pareto_front(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of which none is lower in both, from the left to the right."""
    front: list[tuple[float, float]] = []
    for x, y in sorted({*points}):
        if not front or y < front[-1][1]:
            front.append((x, y))
    return front


def step_bars(
    rows: Mapping[str, Mapping[str, float]], path: Path | str, *, title: str, caption: str
) -> None:
    """A bar for each step, and below it the parts' names. `rows`: of each step ("recorded") its
    parts in µs, keys of `PARTS` in that order."""
    shown = [part for part in PARTS if any(parts.get(part) for parts in rows.values())]
    whole_ms = max(sum(parts.values()) for parts in rows.values()) / 1e3
    form = ".1f" if whole_ms > 8 else ".2f"  # two digits would not fit into a short part
    heights = [0.6 + 0.95 * len(rows), 0.3 * len(shown)]
    size = (PHONE_INCHES, 2.6 + sum(heights))
    with canvas(path, size, title=title, caption=caption) as figure:
        axes, names = figure.subplots(2, 1, height_ratios=heights)
        for y, (step, parts) in enumerate(rows.items()):
            left = 0.0
            axes.text(0, y - 0.36, step, va="bottom")
            for part, us in parts.items():
                ms, colour = us / 1e3, PARTS[part]
                axes.barh(y, ms, left=left, height=0.55, color=colour, edgecolor=hue.PAPER)
                if ms > 0.07 * whole_ms:
                    ink = hue.ink_on(colour)
                    axes.text(left + ms / 2, y, f"{ms:{form}}", ha="center", va="center", color=ink)
                left += ms
            axes.text(left + 0.01 * whole_ms, y, f"{left:{form}} ms", va="center", weight="bold")
        axes.set(xlim=(0, 1.25 * whole_ms), ylim=(len(rows) - 0.5, -0.8), xlabel="ms of one step")
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        names.set_axis_off()
        handles = [Patch(color=PARTS[part], label=part) for part in shown]
        names.legend(handles=handles, loc="upper left", borderaxespad=0, handlelength=1.2)
