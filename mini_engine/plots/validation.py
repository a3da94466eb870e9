"""Predicted against measured: every published point, and the errors of each class.

In: rows and summaries of `predict.validate`. Out: a PNG each.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.ticker import FuncFormatter

from mini_engine.plots.canvas import BLACK, BLUE, GREEN, GREY, PALE, VERMILION, canvas
from mini_engine.validate.validate import Row, Summary

COLOURS = {"NONE": VERMILION, "PIECEWISE": GREEN, "FULL": BLUE}
SHAPES = "osD^v<>Ph*Xp8dH"
SIZE = (12.0, 9.0)


def predicted_against_measured(rows: Sequence[Row], path: Path | str) -> None:
    """Both axes logarithmic; a colour for how a step is launched, a shape for the class."""
    classes = sorted({row.point.cls for row in rows})
    sources = len({row.point.source for row in rows})
    inside = sum(abs(row.error) <= 0.1 for row in rows) / len(rows)
    with canvas(
        path,
        SIZE,
        title=f"{inside:.0%} of {len(rows)} measured decode steps are predicted within 10%",
        caption=f"Measured by others, {sources} sources; predicted from card, host and engine. "
        "Bars: what 80% of the points of sources left out of the fit were missed by. "
        "Grey: within 10%.",
    ) as figure:
        axes = figure.subplots()
        values = [v for row in rows for v in (row.point.itl_ms, row.predicted_ms)]
        ends = [min(values) / 1.3, max(values) * 1.3]
        axes.fill_between(ends, [e / 1.1 for e in ends], [e * 1.1 for e in ends], color=PALE, lw=0)
        axes.plot(ends, ends, color=BLACK, lw=1)
        for shape, cls in zip(SHAPES, classes, strict=False):
            of = [row for row in rows if row.point.cls == cls]
            x, y = [r.point.itl_ms for r in of], [r.predicted_ms for r in of]
            bars = [
                [r.predicted_ms - r.low_ms for r in of],
                [r.high_ms - r.predicted_ms for r in of],
            ]
            colour = COLOURS[of[0].launched]
            axes.errorbar(x, y, yerr=bars, fmt="none", ecolor=colour, alpha=0.25, lw=1.5)
            axes.scatter(
                x, y, marker=shape, s=90, color=colour, edgecolors="white", label=cls, zorder=3
            )
        axes.set(xscale="log", yscale="log", xlim=ends, ylim=ends)
        plain = FuncFormatter(lambda value, _position: f"{value:g}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(plain)
        axes.set_xlabel("measured ITL, ms")
        axes.set_ylabel("predicted ITL, ms")
        axes.legend(loc="upper left", fontsize=12)


def errors_by_class(rows: Sequence[Row], summaries: Sequence[Summary], path: Path | str) -> None:
    """One line a class: each point's error, the median, and the median with its source left out."""
    ordered = sorted(summaries, key=lambda s: s.median_error, reverse=True)
    worst = ordered[0]
    with canvas(
        path,
        SIZE,
        title=f"Farthest off: {worst.name}, {worst.median_error:.0%} in the median",
        caption="Dots: predicted over measured, less one. Bars: the median of a class. Diamonds: "
        "each source predicted by a fit that has not seen it.",
    ) as figure:
        axes = figure.subplots()
        axes.axvspan(-0.1, 0.1, color=PALE, lw=0)
        axes.axvline(0, color=BLACK, lw=1)
        for y, one in enumerate(ordered):
            of = [row for row in rows if row.point.cls == one.name]
            colour = COLOURS[of[0].launched]
            others = [r.left_out_error for r in of if r.left_out_error is not None]
            axes.scatter(others, [y - 0.22] * len(others), marker="D", s=40, facecolors="none",
                         edgecolors=GREY)  # fmt: skip
            axes.scatter([r.error for r in of], [y] * len(of), s=60, color=colour, alpha=0.7)
            axes.plot([one.bias] * 2, [y - 0.3, y + 0.3], color=colour)
        axes.set_yticks(range(len(ordered)), [f"{s.name} ({s.points})" for s in ordered])
        axes.xaxis.set_major_formatter(
            FuncFormatter(lambda share, _position: f"{100 * share:+.0f}%")
        )
        axes.set_xlabel("error of the prediction")
