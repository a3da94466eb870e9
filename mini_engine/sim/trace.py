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
from typing import Any

from mini_engine.files import read_object, typed, write_whole

CPU, GPU = "CPU", "GPU"
LANES = (CPU, GPU)  # the order in which they are drawn
MAX_BYTES = 256 * 2**20  # of a file that is read; a step of a profiler is some megabytes


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


@dataclass(frozen=True)
class _Box:
    """A complete event of a trace file."""

    pid: int | str
    tid: int | str
    name: str
    ts: float
    dur: float
    cat: str = ""


@dataclass(frozen=True)
class _Label:
    """A metadata event, which gives a process or a thread its name."""

    pid: int | str
    args: dict[str, Any]
    tid: int | str = 0


def write_trace(path: Path, timelines: Mapping[str, Sequence[TraceEvent]]) -> None:
    """`{"NONE": events, "FULL": events}` as one trace: a process each, with a thread a lane."""
    rows: list[dict[str, object]] = []
    for pid, (process, events) in enumerate(timelines.items(), start=1):
        rows.append({"ph": "M", "pid": pid, "tid": 0, "name": "process_name",
                     "args": {"name": process}})  # fmt: skip
        for tid, lane in enumerate(LANES, start=1):
            rows.append({"ph": "M", "pid": pid, "tid": tid, "name": "thread_name",
                         "args": {"name": lane}})  # fmt: skip
        rows += [
            {"ph": "X", "pid": pid, "tid": LANES.index(event.lane) + 1, "name": event.name,
             "cat": event.category or "event", "ts": round(event.start_us, 4),
             "dur": round(event.duration_us, 4)}
            for event in events
        ]  # fmt: skip
    write_whole(path, json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))


def read_trace(path: Path) -> dict[str, list[TraceEvent]]:
    """The timelines of a trace file, by process name.

    Raises ValueError, naming the file, the event and the field, if it is no such trace.
    """
    rows = read_object(path, MAX_BYTES).get("traceEvents")
    if not isinstance(rows, list):
        raise ValueError(f"{path}: no list under 'traceEvents': is this a Chrome trace?")
    processes: dict[object, str] = {}
    lanes: dict[object, str] = {}
    boxes: list[_Box] = []
    for index, row in enumerate(rows):
        where = f"{path}: event {index}"
        kind = (row.get("ph"), row.get("name")) if isinstance(row, dict) else None
        if kind is None or kind[0] == "X":
            boxes.append(typed(_Box, row, where, more=True))
        elif kind in (("M", "process_name"), ("M", "thread_name")):
            label = typed(_Label, row, where, more=True)
            name = str(label.args.get("name"))
            if row["name"] == "thread_name":
                lanes[label.pid, label.tid] = name
                continue
            others = [process for pid, process in processes.items() if pid != label.pid]
            processes[label.pid] = f"{name} #{label.pid}" if name in others else name
    timelines: dict[str, list[TraceEvent]] = {name: [] for name in processes.values()}
    for box in boxes:
        process = processes.get(box.pid, str(box.pid))
        lane = lanes.get((box.pid, box.tid), str(box.tid))
        event = TraceEvent(lane, box.name, box.ts, box.dur, box.cat)
        timelines.setdefault(process, []).append(event)
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
