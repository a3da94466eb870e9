"""One row of a benchmark: a variant at one point, and what was measured of it.

The time of a variant that failed the gate is no result, whoever wrote the variant. No torch.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple

from mini_engine.files import typed

MEASURED, NOT_RUN, GATE_FAILED = "measured", "not run", "gate failed"


class Point(NamedTuple):
    """What all variants of a comparison decode."""

    shape: str
    batch: int
    context: int

    def __str__(self) -> str:
        return f"{self.shape}, batch {self.batch}, context {self.context:,}"


@dataclass(frozen=True)
class Interval:
    """A median with its 95% interval."""

    median: float
    low: float
    high: float
    samples: int


NOTHING = Interval(0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Row:
    """A variant at a point. What follows `gate` is filled in for a measured row only."""

    shape: str
    batch: int
    context: int
    variant: str
    status: str  # MEASURED, NOT_RUN or GATE_FAILED
    reason: str = ""  # why it was not measured
    gate: Mapping[str, Any] = field(default_factory=dict)  # the gate's verdict
    date: str = ""
    prepare_s: float = 0.0  # to compile and capture
    steps_a_call: int = 1
    no_graph: str = ""  # how many torch.compile left out, where its mode has some
    bytes_to_move: int = 0  # weights, keys and values, read once a step
    predicted_us: float = 0.0
    itl_laps_us: tuple[float, ...] = ()  # µs a decode step by the device's clock, lap by lap
    anchor_laps_us: tuple[float, ...] = ()  # of the anchor, in the same order
    itl: Interval = NOTHING  # µs a step
    wall: Interval = NOTHING  # the same by the caller's clock
    times_the_anchor: Interval = NOTHING
    achieved_gb_s: float = 0.0
    percent_of_copy: float = 0.0
    gpu_state: Mapping[str, str] = field(default_factory=dict)  # clocks, temperature, power after

    @property
    def point(self) -> Point:
        return Point(self.shape, self.batch, self.context)

    @property
    def itl_us(self) -> float:
        return self.itl.median

    @property
    def failed_gate(self) -> bool:
        """Whether it computes the wrong thing: its time, if it has one, is no result."""
        return self.status == GATE_FAILED or (self.status == MEASURED and not self.gate["passed"])

    def as_json(self) -> dict[str, Any]:
        return dict(json.loads(json.dumps(asdict(self))))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """A row of a file. ValueError for one of another form."""
        row = typed(cls, data, "a row")
        if row.status == MEASURED and not (row.itl.median > 0 and "passed" in row.gate):
            raise ValueError(f"a row: {row.variant}: measured, without a time or a verdict")
        return row


def by_point(rows: Iterable[Row]) -> dict[Point, list[Row]]:
    """Points in the order of their first row, each with all of its rows."""
    found: dict[Point, list[Row]] = {}
    for row in rows:
        found.setdefault(row.point, []).append(row)
    return found


def measured_steps(rows: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Those of a file's rows whose time is a result: measured, and past the gate."""
    every = map(Row.from_json, rows)
    return [row for row in every if row.status == MEASURED and not row.failed_gate]


def of_one_place(steps: Sequence[Row]) -> list[Row]:
    """The steps of the shape and context that have the most batches, the first of equals. Raises
    ValueError without a step."""
    if not steps:
        raise ValueError("no variant has a result")
    points = dict.fromkeys(step.point for step in steps)
    [(place, _)] = Counter((point.shape, point.context) for point in points).most_common(1)
    return [step for step in steps if (step.shape, step.context) == place]


def curve(steps: Sequence[Row], variant: str) -> list[Row]:
    """One variant's steps, batch rising."""
    return sorted((s for s in steps if s.variant == variant), key=lambda s: s.batch)
