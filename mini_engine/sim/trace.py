"""Timeline events, and the trace file that Perfetto and chrome://tracing open.

Format: "Trace Event Format" (Google, 2016): complete events `ph: "X"` with `ts` and `dur` in µs,
and metadata events `ph: "M"` that name processes and threads."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from mini_engine.files import write_whole

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


def write_trace(path: Path, timelines: Mapping[str, Sequence[TraceEvent]]) -> None:
    """`{"NONE": events, "FULL": events}` as one trace: a process each, with a thread a lane."""
    rows: list[dict[str, object]] = []
    for pid, (process, events) in enumerate(timelines.items(), start=1):
        for tid, name in enumerate((process, *LANES)):
            rows.append({"ph": "M", "pid": pid, "tid": tid, "args": {"name": name},
                         "name": "thread_name" if tid else "process_name"})  # fmt: skip
        rows += [
            {"ph": "X", "pid": pid, "tid": LANES.index(event.lane) + 1, "name": event.name,
             "cat": event.category or "event", "ts": round(event.start_us, 4),
             "dur": round(event.duration_us, 4)}
            for event in events
        ]  # fmt: skip
    write_whole(path, json.dumps({"traceEvents": rows, "displayTimeUnit": "ms"}))


def summary(timelines: Mapping[str, Sequence[TraceEvent]]) -> dict[str, dict[str, float]]:
    found = {}
    for name, events in timelines.items():
        length = max(e.end_us for e in events) - min(e.start_us for e in events)
        cpu, gpu = busy_us(events, CPU), busy_us(events, GPU)
        found[name] = {"events": len(events), "length_us": length, "cpu_us": cpu,
                       "gpu_us": gpu, "utilisation": gpu / length}  # fmt: skip
    return found


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
