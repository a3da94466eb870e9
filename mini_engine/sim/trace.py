"""Timeline events, and the trace file that Perfetto and chrome://tracing open.

In: what the CPU and the GPU did, as `TraceEvent`s. Out: Chrome trace JSON, written and read.

Format: "Trace Event Format" (Google, 2016): complete events `ph: "X"` with `ts` and `dur` in µs,
and metadata events `ph: "M"` that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mini_engine.files import read_json, write_whole

CPU, GPU = "CPU", "GPU"
MAX_BYTES = 256 * 2**20  # of a file that is read; a step of a profiler is some megabytes
MOST_US = 1e18  # thirty thousand years: profilers count from 1970
LANES = (CPU, GPU)  # the order in which they are drawn


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One box on one lane. Times in µs."""

    lane: str  # CPU or GPU
    name: str
    start_us: float
    duration_us: float
    category: str = ""  # launch | graph | kernel | node | copy | wait | host

    @property
    def end_us(self) -> float:
        return self.start_us + self.duration_us


def to_chrome(timelines: Mapping[str, Sequence[TraceEvent]]) -> dict[str, object]:
    """`{"NONE": events, "FULL": events}` as one trace: a process each, with a thread a lane."""
    rows: list[dict[str, object]] = []
    for pid, (process, events) in enumerate(timelines.items(), start=1):
        rows.append(_metadata("process_name", pid, 0, process))
        for tid, lane in enumerate(LANES, start=1):
            rows.append(_metadata("thread_name", pid, tid, lane))
        rows += [
            {
                "ph": "X",
                "pid": pid,
                "tid": LANES.index(event.lane) + 1,
                "name": event.name,
                "cat": event.category or "event",
                "ts": round(event.start_us, 4),
                "dur": round(event.duration_us, 4),
            }
            for event in events
        ]
    return {"traceEvents": rows, "displayTimeUnit": "ms"}


def write_trace(path: Path, timelines: Mapping[str, Sequence[TraceEvent]]) -> None:
    """Write `path` in Chrome's trace format."""
    write_whole(path, json.dumps(to_chrome(timelines)))


def read_trace(path: Path) -> dict[str, list[TraceEvent]]:
    """The timelines of a trace file, by process name.

    Raises ValueError, naming the file, the event and the field, if it is no such trace.
    """
    document = read_json(Path(path), MAX_BYTES)
    rows = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: no list under 'traceEvents': is this a Chrome trace?")
    processes: dict[object, str] = {}
    lanes: dict[object, str] = {}
    complete: list[dict[str, Any]] = []
    for index, row in enumerate(rows):
        where = f"{path}: event {index}"
        if not isinstance(row, dict):
            raise ValueError(f"{where} is {row!r:.40}, expected an object")
        if row.get("ph") == "X":
            _check(row, ("pid", "tid", "name", "ts", "dur"), where)
            complete.append(row)
        elif row.get("ph") == "M" and row.get("name") == "process_name":
            _check(row, ("pid", "args"), where)
            name, taken = row["args"]["name"], {**processes, row["pid"]: None}.values()
            processes[row["pid"]] = f"{name} #{row['pid']}" if name in taken else name
        elif row.get("ph") == "M" and row.get("name") == "thread_name":
            _check(row, ("pid", "tid", "args"), where)
            lanes[row["pid"], row["tid"]] = row["args"]["name"]
    timelines: dict[str, list[TraceEvent]] = {name: [] for name in processes.values()}
    for row in complete:
        process = processes.get(row["pid"], str(row["pid"]))
        lane = lanes.get((row["pid"], row["tid"]), str(row["tid"]))
        timelines.setdefault(process, []).append(
            TraceEvent(lane, row["name"], row["ts"], row["dur"], str(row.get("cat", "")))
        )
    return timelines


def busy_us(events: Iterable[TraceEvent], lane: str) -> float:
    """Time in µs during which `lane` is at work: the union of its events, without waits."""
    total, until = 0.0, float("-inf")
    for event in sorted(events, key=lambda e: e.start_us):
        if event.lane != lane or event.category == "wait":
            continue
        start = max(event.start_us, until)
        total += max(0.0, event.end_us - start)
        until = max(until, event.end_us)
    return total


def _metadata(kind: str, pid: int, tid: int, name: str) -> dict[str, object]:
    return {"ph": "M", "pid": pid, "tid": tid, "name": kind, "args": {"name": name}}


def _check(row: Mapping[str, Any], fields: Sequence[str], where: str) -> None:
    """Raises ValueError unless the row has these fields, each of the kind that its name says."""
    missing = [name for name in fields if name not in row]
    if missing:
        raise ValueError(f"{where} has no {', '.join(missing)}")
    for name in fields:
        value, (fits, expected) = row[name], _FIELDS[name]
        if not fits(value):
            raise ValueError(f"{where}: {name} is {value!r:.40}, expected {expected}")


def _is_time(value: object) -> bool:
    return type(value) in (int, float) and abs(value) <= MOST_US  # type: ignore[arg-type]


def _is_id(value: object) -> bool:
    return type(value) in (int, str)


def _names_something(value: object) -> bool:
    return isinstance(value, dict) and isinstance(value.get("name"), str)


_FIELDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "pid": (_is_id, "a number or a name"),
    "tid": (_is_id, "a number or a name"),
    "name": (lambda value: isinstance(value, str), "words"),
    "ts": (_is_time, f"a time in µs, {MOST_US:g} at most"),
    "dur": (lambda value: _is_time(value) and value >= 0, f"0 to {MOST_US:g} µs"),
    "args": (_names_something, 'an object with a "name"'),
}
