"""One row of a benchmark: a variant at one point, and what was measured of it.

In:  an object of a measurement file's `rows`, or what a benchmark has found out.
Out: `Row`, and back: `Row.from_json(row.as_json()) == row`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, NamedTuple

MEASURED, NOT_RUN, GATE_FAILED = "measured", "not run", "gate failed"
IN_THE_FILE = {"itl": "itl_us", "wall": "wall_us"}  # fields with another name in the file
WITHOUT_FIGURES = ("shape", "batch", "context", "variant", "status", "reason", "gate")
OPTIONAL = (
    "reason",
    "gate",
    "no_graph",
    "failed_in_another_process",
)  # left out of the file when empty


class Point(NamedTuple):
    """What all variants of a comparison decode."""

    shape: str
    batch: int
    context: int


@dataclass(frozen=True)
class Interval:
    """A median with its 95% interval; for several processes, the mean of their medians."""

    median: float
    low: float
    high: float
    samples: int  # in all
    processes: int = 1

    def rounded(self) -> Interval:
        return replace(self, median=six(self.median), low=six(self.low), high=six(self.high))

    def as_dict(self) -> dict[str, float]:
        return asdict(self.rounded())


@dataclass(frozen=True)
class Run:
    """One variant in one process. Laps: µs a decode step, paired with the anchor's."""

    date: str
    prepare_s: float
    itl_laps_us: tuple[float, ...]  # by the device's clock
    anchor_laps_us: tuple[float, ...]
    wall_laps_us: tuple[float, ...]
    gpu_state: Mapping[str, str]  # clocks, temperature, power after it


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
    steps_a_call: int = 1
    kernels_a_call: int | None = None  # None: no profiler saw a GPU
    launches_a_call: int | None = None
    no_graph: str = ""  # how many launches, where a variant that claims a graph ran without one
    ops_a_call: int = 0
    bytes_to_move: int = 0  # weights and KV, read once a step
    bytes_by_op_list: int = 0
    predicted_us: float = 0.0
    runs: tuple[Run, ...] = ()  # one per process; the figures below cover them all
    itl: Interval = NOTHING  # µs a step
    wall: Interval = NOTHING
    times_the_anchor: Interval = NOTHING
    process_medians_us: tuple[float, ...] = ()
    achieved_gb_s: float = 0.0
    percent_of_copy: float = 0.0
    predicted_percent_off: float = 0.0
    failed_in_another_process: str = ""  # why one of the processes could not measure it

    @property
    def point(self) -> Point:
        return Point(self.shape, self.batch, self.context)

    @property
    def itl_us(self) -> float:
        return self.itl.median

    @property
    def told_no_graph(self) -> str:
        """ "ran without a graph: 259 launches; ...", or nothing."""
        return f"ran without a graph: {self.no_graph}" if self.no_graph else ""

    @property
    def tokens_per_s(self) -> float:
        return self.batch / self.itl_us * 1e6

    @property
    def failed_gate(self) -> bool:
        """Whether it computes the wrong thing: its time, if it has one, is no result."""
        return self.status == GATE_FAILED or (self.status == MEASURED and not self.gate["passed"])

    @property
    def is_result(self) -> bool:
        return self.status == MEASURED and not self.failed_gate

    def as_json(self) -> dict[str, Any]:
        """The row as it stands in a file."""
        told = {IN_THE_FILE.get(name, name): value for name, value in asdict(self).items()
                if value or name not in OPTIONAL}  # fmt: skip
        if self.status == MEASURED:
            return told
        return {name: value for name, value in told.items() if name in WITHOUT_FIGURES}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Row:
        """A row of a file. KeyError for one in which something is missing."""
        names = [f.name for f in fields(cls)]
        if data["status"] != MEASURED:
            names = list(WITHOUT_FIGURES)
        keys = {name: IN_THE_FILE.get(name, name) for name in names}
        given = {n: data[key] for n, key in keys.items() if n not in OPTIONAL or key in data}
        for name in {"itl", "wall", "times_the_anchor"} & set(given):
            given[name] = Interval(**given[name])
        if "runs" in given:
            given["runs"] = tuple(_run(**run) for run in given["runs"])
            given["process_medians_us"] = tuple(given["process_medians_us"])
        return cls(**given)


def by_point(rows: Iterable[Row]) -> dict[Point, list[Row]]:
    """Points in the order of their first row, each with all of its rows."""
    found: dict[Point, list[Row]] = {}
    for row in rows:
        found.setdefault(row.point, []).append(row)
    return found


def six(value: float) -> float:
    """Rounded to six digits: no clock here has more."""
    return float(f"{value:.6g}")


def _run(**data: Any) -> Run:
    laps = {name: tuple(value) for name, value in data.items() if name.endswith("_laps_us")}
    return Run(**{**data, **laps})
