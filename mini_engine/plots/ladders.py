"""Two figures of capture ladders: what padding wastes, and what less of it would cost.

In:  a ladder; or the best ladders of more and more rungs for a histogram (`LadderCosts.curve`).
Out: a PNG each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from matplotlib.axes import Axes

from mini_engine.dispatch.ladder import CaptureLadder, LadderPoint
from mini_engine.plots.canvas import (
    BLACK,
    BLUE,
    ORANGE,
    VERMILION,
    canvas,
    doubling_ticks,
    percent_ticks,
)

MIB = 1 << 20


def ladder_curve(
    points: Sequence[LadderPoint],
    path: Path | str,
    *,
    caption: str,
    reference: tuple[str, LadderPoint],
) -> None:
    """Padding against capture time and against graph memory, for ladders of more and more rungs.

    `reference`: a named ladder to compare with, say vLLM's own; it is drawn as a star. Raises
    ValueError without points.
    """
    if not points:
        raise ValueError("the curve has no points: give the ladders of 1, 2 ... rungs")
    title = _curve_finding(points, *reference)
    with canvas(path, (13, 7), title=title, caption=caption) as figure:
        left, right = figure.subplots(1, 2, sharey=True)
        _trade(left, points, *reference, lambda point: point.capture_us / 1e3)
        _trade(right, points, *reference, lambda point: point.memory_bytes / MIB)
        left.set_xlabel("capture time (ms)")
        right.set_xlabel("graph memory (MiB)")
        left.set_ylabel("padding (of all rows computed)")
        percent_ticks(left)
        left.set_ylim(0, 1.08 * max(point.waste.wasted_fraction for point in points) + 1e-9)
        right.legend(loc="upper right")


def waste_by_batch(
    ladder: CaptureLadder, path: Path | str, *, caption: str, mark: int | None = None
) -> None:
    """The staircase: the rung that a batch runs at, and the share of its rows that is padding.

    `mark`: a batch to point at. Raises ValueError if it is not on 1 ... ladder.top.
    """
    if mark is not None and not 1 <= mark <= ladder.top:
        raise ValueError(f"batch {mark}: expected 1 to {ladder.top}, the top of the ladder")
    batches = list(range(1, ladder.top + 1))
    rungs = [ladder.rung(batch) or 0 for batch in batches]
    wasted = [1 - batch / rung for batch, rung in zip(batches, rungs, strict=True)]
    title = _staircase_finding(ladder, mark)
    with canvas(path, (13, 9), title=title, caption=caption) as figure:
        above, below = figure.subplots(2, 1, height_ratios=[1.5, 1])
        shown = min(ladder.top, 2 * (mark or 32))
        x, y = batches[:shown], rungs[:shown]
        above.fill_between(x, x, y, step="pre", color=ORANGE, alpha=0.6, label="padding")
        above.step(x, y, where="pre", color=BLUE, label="rung: rows computed")
        above.plot(x, x, ":", color=BLACK, label="batch: rows asked for")
        above.set_xlim(0, shown)
        above.set_ylim(0, None)
        above.set_xlabel(f"batch (rows), up to {shown}")
        above.set_ylabel("rows")
        above.legend(loc="upper left")
        below.fill_between(batches, wasted, step="pre", color=ORANGE, alpha=0.6)
        below.step(batches, wasted, where="pre", color=ORANGE)
        below.set_xscale("log", base=2)
        below.set_xlim(1, max(ladder.top, 2))
        doubling_ticks(below, 1, ladder.top)
        below.set_ylim(0, None)
        percent_ticks(below)
        below.set_xlabel("batch (rows), the whole ladder")
        below.set_ylabel("padding (of rows)")
        if mark:
            _point_at(above, below, mark, ladder.rung(mark) or 0)


# ---------------------------------------------------------------- parts


def _trade(
    axes: Axes,
    points: Sequence[LadderPoint],
    name: str,
    reference: LadderPoint,
    price: Callable[[LadderPoint], float],
) -> None:
    """One curve, a dot for each ladder, numbered where there is room."""
    prices = [price(point) for point in points]
    waste = [point.waste.wasted_fraction for point in points]
    axes.plot(prices, waste, "o-", color=BLUE, markersize=7, label="best ladder of n rungs")
    right, high = max(prices) or 1.0, max(waste) or 1.0
    labelled: list[tuple[float, float]] = []
    for point, x, y in reversed(list(zip(points, prices, waste, strict=True))):
        if all(abs(x - u) > 0.06 * right or abs(y - v) > 0.06 * high for u, v in labelled):
            labelled.append((x, y))
            axes.annotate(
                f"{len(point.ladder)}", (x, y), xytext=(4, 7),
                textcoords="offset points", color=BLUE, weight="bold",
            )  # fmt: skip
    label = f"{name}: {len(reference.ladder)} rungs"
    at = ([price(reference)], [reference.waste.wasted_fraction])
    axes.plot(*at, "*", color=ORANGE, markersize=22, markeredgecolor="black", label=label)
    axes.set_xlim(0, None)


def _curve_finding(points: Sequence[LadderPoint], name: str, reference: LadderPoint) -> str:
    """The first ladder that wastes no more than the reference, or the last one, beside it."""
    own = reference.waste.wasted_fraction
    best = next((p for p in points if p.waste.wasted_fraction <= own), points[-1])
    return (
        f"{len(best.ladder)} chosen rungs: {best.waste.wasted_fraction:.1%} padding; "
        f"{name} of {len(reference.ladder)}: {own:.1%}"
    )


def _staircase_finding(ladder: CaptureLadder, mark: int | None) -> str:
    if mark is not None:
        rung = ladder.rung(mark) or 0
        return f"A batch of {mark} runs at {rung}: {rung - mark} rows of padding"
    wasted, batch = max((1 - n / (ladder.rung(n) or n), n) for n in range(1, ladder.top + 1))
    if not wasted:
        return "Every batch has a rung of its own: no padding"
    return f"Padding is worst at batch {batch}: {wasted:.0%} of its {ladder.rung(batch)} rows"


def _point_at(above: Axes, below: Axes, mark: int, rung: int) -> None:
    above.plot([mark, mark], [mark, rung], "o-", color=VERMILION, markersize=8, linewidth=3)
    above.annotate(
        f"{mark} runs at {rung}", (mark, rung), xytext=(-10, 10), textcoords="offset points",
        ha="right", weight="bold", color=VERMILION,
    )  # fmt: skip
    below.plot([mark], [1 - mark / rung], "o", color=VERMILION, markersize=9)
    below.annotate(
        f"{1 - mark / rung:.0%}", (mark, 1 - mark / rung), xytext=(6, 6),
        textcoords="offset points", weight="bold", color=VERMILION,
    )  # fmt: skip
