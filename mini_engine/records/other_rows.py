"""One row of a comparison with other engines: an engine at one point, as its caller sees it.

In:  an object of a measurement file's `others`, or what a comparison has found out.
Out: `OtherRow`, and back: `OtherRow.from_json(row.as_json()) == row`.

Not a `Row`: there the device's clock times decode steps that follow one another without a caller;
here the caller's clock times tokens that it can use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mini_engine.records.rows import MEASURED, NOTHING, Interval, Point

NOT_MEASURED = ("shape", "batch", "context", "engine", "status", "reason")  # all that is told then


@dataclass(frozen=True)
class OtherRun:
    """One engine in one process of its own."""

    process: int  # from 1: engines of a number ran one after the other
    date: str
    start_s: float  # load, compile, capture
    itl_laps_us: tuple[float, ...]  # the median gap between tokens of each lap
    p99_us: float  # over the gaps of all laps
    gpu_state: Mapping[str, str]


@dataclass(frozen=True)
class OtherRow:
    """An engine at a point. What follows `reason` is filled in for a measured row only."""

    shape: str
    batch: int
    context: int
    engine: str
    status: str  # MEASURED or NOT_RUN
    reason: str = ""
    version: str = ""
    tokens_a_piece: float = 0.0  # 1.0: each came alone
    same_tokens: float = 0.0  # share of the first `compared` tokens up to which it wrote ours
    compared: int = 0  # 0: ours are not known
    runs: tuple[OtherRun, ...] = ()  # one per process; the figures below cover them all
    itl: Interval = NOTHING  # µs between tokens
    p99_us: float = 0.0  # the mean of the processes'
    times_ours: Interval = NOTHING  # NOTHING: no number under which both ran

    @property
    def point(self) -> Point:
        return Point(self.shape, self.batch, self.context)

    def as_json(self) -> dict[str, Any]:
        """The row as it stands in a file."""
        told = asdict(self)
        return told if self.status == MEASURED else {name: told[name] for name in NOT_MEASURED}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> OtherRow:
        """A row of a file. TypeError or KeyError for one with other fields."""
        given = dict(data)
        for name in {"itl", "times_ours"} & set(given):
            given[name] = Interval(**given[name])
        given["runs"] = tuple(_run(**run) for run in given.get("runs", ()))
        return cls(**given)


def _run(**data: Any) -> OtherRun:
    return OtherRun(**{**data, "itl_laps_us": tuple(data["itl_laps_us"])})
