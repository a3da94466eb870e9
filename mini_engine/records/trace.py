"""Timeline events, and the trace file that Perfetto and chrome://tracing open.

In: what the CPU and the GPU did, as `TraceEvent`s. Out: Chrome trace JSON, written and read.

Format: "Trace Event Format" (Google, 2016): complete events `ph: "X"` with `ts` and `dur` in µs,
and metadata events `ph: "M"` that name processes and threads.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

CPU, GPU = "CPU", "GPU"
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
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(to_chrome(timelines)))


def read_trace(path: Path) -> dict[str, list[TraceEvent]]:
    """The timelines of a trace file, by process name.

    Raises ValueError, naming the file, the event and the field, if it is no such trace.
    """
    try:
        document = json.loads(Path(path).read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: not JSON ({error})") from error
    rows = document.get("traceEvents") if isinstance(document, dict) else None
    if not isinstance(rows, list):
        raise ValueError(f"{path}: no list under 'traceEvents': is this a Chrome trace?")
    names, lanes = _names(rows)
    timelines: dict[str, list[TraceEvent]] = {name: [] for name in names.values()}
    for index, row in enumerate(rows):
        if row.get("ph") != "X":
            continue
        missing = [key for key in ("pid", "tid", "name", "ts", "dur") if key not in row]
        if missing:
            raise ValueError(f"{path}: event {index} has no {', '.join(missing)}")
        process = names.get(row["pid"], str(row["pid"]))
        lane = lanes.get((row["pid"], row["tid"]), str(row["tid"]))
        timelines.setdefault(process, []).append(
            TraceEvent(lane, row["name"], row["ts"], row["dur"], row.get("cat", ""))
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


def _names(rows: list[dict]) -> tuple[dict[int, str], dict[tuple[int, int], str]]:
    processes: dict[int, str] = {}
    lanes: dict[tuple[int, int], str] = {}
    for row in rows:
        if row.get("ph") == "M" and row.get("name") == "process_name":
            processes[row["pid"]] = row["args"]["name"]
        elif row.get("ph") == "M" and row.get("name") == "thread_name":
            lanes[row["pid"], row["tid"]] = row["args"]["name"]
    return processes, lanes
