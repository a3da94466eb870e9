"""The rows of a benchmark: one for each variant at a point, with what each process measured in it.

In:  what one process found out about one variant. Out: a row, whose figures cover all processes in
it. No torch.

    row = measured_row(point, "ours-graph", facts, run)     # of one process
    row = joined(row, measured_row(...), copy_gb_s)         # of the next one, beside it

`status` is "measured", "not run" or "gate failed". A gate that failed in one process has failed:
the row loses its times, and nothing but another file gets rid of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from mini_engine.cuda.measure.intervals import pooled_interval, pooled_ratio

Row = dict[str, Any]
MEASURED, NOT_RUN, GATE_FAILED = "measured", "not run", "gate failed"


@dataclass(frozen=True)
class Point:
    """What all variants of a comparison decode."""

    shape: str
    batch: int
    context: int


@dataclass(frozen=True)
class Run:
    """One variant in one process. Laps: µs a decode step, paired with the anchor's."""

    date: str
    prepare_s: float
    itl_laps_us: list[float]  # by the device's clock
    anchor_laps_us: list[float]
    wall_laps_us: list[float]
    gpu_state: Mapping[str, str]  # clocks, temperature, power after it


def not_run(point: Point, name: str, reason: str) -> Row:
    """The row of a variant that has no figures."""
    return {**asdict(point), "variant": name, "status": NOT_RUN, "reason": reason}


def gate_failed(point: Point, name: str, reason: str, verdict: Mapping[str, Any]) -> Row:
    """The row of a variant whose times are of no interest: what it computes is wrong."""
    return {**not_run(point, name, reason), "status": GATE_FAILED, "gate": dict(verdict)}


def measured_row(
    point: Point, name: str, facts: Mapping[str, Any], run: Run, copy_gb_s: float
) -> Row:
    """The row of one process. `facts` do not hang on laps: steps_a_call, bytes_to_move,
    predicted_us, gate and whatever else is to stand in the row."""
    laps = {key: [_six(us) for us in value] if isinstance(value, list) else value
            for key, value in asdict(run).items()}  # fmt: skip
    row = {**asdict(point), "variant": name, "status": MEASURED, **facts, "runs": [laps]}
    return _with_figures(row, copy_gb_s)


def joined(old: Row | None, new: Row, copy_gb_s: float) -> Row:
    """What stood in the file, and what the next process says of the same variant."""
    if old is None or GATE_FAILED in (old["status"], new["status"]):
        return old if old is not None and old["status"] == GATE_FAILED else new
    if old["status"] != MEASURED:
        return new
    if new["status"] != MEASURED:
        return {**old, "failed_in_another_process": new["reason"]}
    runs = [*old["runs"], *new["runs"]]
    gate = old["gate"] if not old["gate"]["passed"] else new["gate"]  # the worse verdict stays
    return _with_figures({**old, "gate": gate, "runs": runs}, copy_gb_s)


def wants(row: Row | None, process: int) -> bool:
    """Whether process number `process`, from 1, has to measure what this row is of.

    What could not run in the first process is tried again by the first process of a resumed run.
    """
    if row is None:
        return True
    if row["status"] == MEASURED:
        return len(row["runs"]) < process
    return row["status"] == NOT_RUN and process == 1


def key_of(row: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """What a row is of."""
    return row["shape"], row["batch"], row["context"], row["variant"]


def _with_figures(row: Row, copy_gb_s: float) -> Row:
    """The figures of all runs in the row, made again from their laps."""
    runs = row["runs"]
    itl = pooled_interval([run["itl_laps_us"] for run in runs])
    ratio = pooled_ratio(
        [run["anchor_laps_us"] for run in runs], [run["itl_laps_us"] for run in runs]
    )
    gb_s = row["bytes_to_move"] / itl.median / 1e3
    return {
        **row,
        "itl_us": itl.as_dict(),
        "wall_us": pooled_interval([run["wall_laps_us"] for run in runs]).as_dict(),
        "times_the_anchor": ratio.as_dict(),
        "process_medians_us": [
            pooled_interval([run["itl_laps_us"]]).as_dict()["median"] for run in runs
        ],
        "achieved_gb_s": round(gb_s, 3),
        "percent_of_copy": round(100 * gb_s / copy_gb_s, 3),
        "predicted_percent_off": round(100 * (row["predicted_us"] / itl.median - 1), 2),
    }


def _six(value: float) -> float:
    return float(f"{value:.6g}")
