"""How far the model is from what others have measured: point by point, by class, and for graphs.

In:  points, sheets, and the prediction of each point by a fit that had not seen its source.
Out: a `Row` for each point, a `Summary` for each class, and `Pair`s: one step launched in two ways.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median

import numpy as np

from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.step.capacity import read_bytes
from mini_engine.step.cards import DeviceSpec, Sheet
from mini_engine.validate.published import (
    LAUNCHES,
    SHIPPED_POINTS,
    Point,
    Sheets,
    predicted_ms,
    read_points,
)

WITHIN = 0.10
GROUPS = {mode: name for name, mode in LAUNCHES.items()}


@dataclass(frozen=True)
class Row:
    """One point beside its prediction."""

    point: Point
    predicted_ms: float
    low_ms: float
    high_ms: float
    host: str  # the file that stands for the point's host
    host_known: bool  # else it is the one that the engine usually runs on
    launched: str  # NONE, PIECEWISE or FULL
    left_out_ms: float | None = None  # predicted by a fit that had not seen the point's source

    @property
    def step(self) -> tuple[object, ...]:
        """What was measured, however it was launched: the maker of the engine, host, model, ..."""
        p = self.point
        return p.cls.split()[0], p.host, p.model, p.card, p.batch, p.context, p.quant

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_ms / self.point.itl_ms - 1

    @property
    def left_out_error(self) -> float | None:
        return None if self.left_out_ms is None else self.left_out_ms / self.point.itl_ms - 1


@dataclass(frozen=True)
class Summary:
    """Errors of some points. Shares, not percent."""

    name: str
    points: int
    sources: int
    median_error: float  # of the absolute values
    p90_error: float
    bias: float  # the median with its sign
    within: float  # share of points within 10%
    left_out_median: float | None  # the median, each source left out of the fit


@dataclass(frozen=True)
class Pair:
    """The same step on the same host and card, launched in two ways."""

    slow: Row
    fast: Row

    @property
    def measured(self) -> float:
        return self.slow.point.itl_ms / self.fast.point.itl_ms

    @property
    def predicted(self) -> float:
        return self.slow.predicted_ms / self.fast.predicted_ms


def rows_of(
    points: Sequence[Point],
    sheets: Sheets,
    left_out: Mapping[str, float] | None = None,
    hosts: Mapping[str, Sheet] | None = None,
) -> list[Row]:
    """Every point beside its prediction. `hosts` has a file for hosts that are known from nowhere
    else."""
    rows = []
    for point in points:
        given = (hosts or {}).get(point.host)
        spec, mode, known = sheets.spec(point, given)
        ms = predicted_ms(point, sheets, given)
        low, high = spec.interval(ms, GROUPS[mode])
        without = (left_out or {}).get(point.id)
        rows.append(Row(point, ms, low, high, spec.host, known, GROUPS[mode], without))
    return rows


def summary(name: str, rows: Sequence[Row]) -> Summary:
    """Raises ValueError for no rows."""
    if not rows:
        raise ValueError(f"{name}: no points to sum up")
    errors = [abs(row.error) for row in rows]
    others = [abs(row.left_out_error) for row in rows if row.left_out_error is not None]
    return Summary(
        name,
        len(rows),
        len({row.point.source for row in rows}),
        median(errors),
        float(np.quantile(errors, 0.9)),
        median(row.error for row in rows),
        sum(error <= WITHIN for error in errors) / len(errors),
        median(others) if others else None,
    )


def by_class(rows: Sequence[Row]) -> list[Summary]:
    """One summary for each class, and for each way to store weights, in alphabetical order."""
    kinds: dict[str, list[Row]] = {}
    for row in rows:
        name = row.point.cls + (f", {row.point.quant}" if row.point.quant else "")
        kinds.setdefault(name, []).append(row)
    return [summary(name, kinds[name]) for name in sorted(kinds)]


def pairs(rows: Sequence[Row]) -> list[Pair]:
    """What a graph bought somebody: one step launched eagerly and in pieces or as one graph, or in
    pieces and as one graph, by the same maker of engines, on the same host and card."""
    order = list(LAUNCHES)
    return [
        Pair(slow, fast)
        for slow in rows
        for fast in rows
        if order.index(slow.launched) < order.index(fast.launched) and slow.step == fast.step
    ]


def nearest_pair(config: ModelConfig, spec: DeviceSpec, batch: int) -> Pair | None:
    """Of the shipped points, the pair of eager and full whose step is most like this one.

    That is the smallest sum of three ratios, as logs: bytes of the model, bandwidth of the card,
    batch.
    """
    sheets = Sheets.shipped()
    points, _ = read_points(SHIPPED_POINTS, sheets)
    found = [
        pair
        for pair in pairs(rows_of(points, sheets))
        if (pair.slow.launched, pair.fast.launched) == ("NONE", "FULL")
        and pair.slow.point.confidence != "low"
    ]

    def apart(pair: Pair) -> float:
        point = pair.slow.point
        ratios = (
            (read_bytes(SHAPES[point.model]), read_bytes(config)),
            (sheets.cards[point.card]["bandwidth_gb_s"], spec.bandwidth_gb_s),
            (point.batch, batch),
        )
        return sum(abs(math.log(a / b)) for a, b in ratios)

    return min(found, key=apart, default=None)


def host_from(point: Point, sheets: Sheets) -> Sheet:
    """The host that makes the prediction of one eager point exact: its op_us is solved for.

    Raises ValueError for a point that the speed of its host does not decide.
    """
    _, mode = sheets.engine_of[point.cls]
    if mode != "eager":
        raise ValueError(f"{point.id} is {point.cls}: a host is told from an eager step")
    usual = sheets.usual_host(point)

    def with_op(op_us: float) -> Sheet:
        figure = replace(
            usual.figures["op_us"], value=op_us, kind="derived", source=f"from point {point.id}"
        )
        figures = {**usual.figures, "op_us": figure}
        return replace(usual, name=f"the host of {point.id}", figures=figures)

    low, high = math.log(0.1), math.log(1000)
    for _ in range(60):
        middle = (low + high) / 2
        slow = predicted_ms(point, sheets, with_op(math.exp(middle))) > point.itl_ms
        low, high = (low, middle) if slow else (middle, high)
    found = with_op(math.exp(low))
    if abs(predicted_ms(point, sheets, found) / point.itl_ms - 1) > 0.01:
        raise ValueError(
            f"{point.id}: the GPU decides how long this step takes, and not its host: "
            "choose an eager step of a smaller model or batch"
        )
    return found
