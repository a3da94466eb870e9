"""The trace file is what Perfetto and chrome://tracing read, and reads back as it was written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_engine.model.config import named_shape
from mini_engine.sim.predict import predict
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us, read_trace, write_trace
from mini_engine.step.cards import load_spec

SPEC = load_spec("h200")


@pytest.fixture(scope="module")
def steps() -> dict[str, tuple[TraceEvent, ...]]:
    return {
        mode: predict(named_shape("qwen3-0.6b"), SPEC, mode).timeline for mode in ("NONE", "FULL")
    }


def check_chrome_schema(document: dict[str, Any]) -> None:
    """The parts of the Trace Event Format that a viewer needs (Google, 2016, "JSON Object Format").

    Every pid and tid is named by metadata; boxes of one thread stand apart, in µs.
    """
    assert document["displayTimeUnit"] == "ms"
    named = {(e["name"], e["pid"], e["tid"]) for e in document["traceEvents"] if e["ph"] == "M"}
    threads: dict[tuple[int, int], list[tuple[float, float]]] = {}
    for event in document["traceEvents"]:
        if event["ph"] == "X":
            threads.setdefault((event["pid"], event["tid"]), []).append((event["ts"], event["dur"]))
    assert threads
    for (pid, tid), boxes in threads.items():
        assert ("process_name", pid, 0) in named
        assert ("thread_name", pid, tid) in named
        end = 0.0
        for start, duration in sorted(boxes):
            assert start >= end - 1e-3  # written to a tenth of a nanosecond
            end = start + duration


def test_two_processes_of_one_name_are_two_timelines(tmp_path: Path) -> None:
    rows: list[dict[str, object]] = []
    for pid in (1, 2):
        rows.append({"ph": "M", "pid": pid, "name": "process_name", "args": {"name": "FULL"}})
        rows.append({"ph": "X", "pid": pid, "tid": 1, "name": "k", "ts": 0, "dur": pid})
    rows.append(rows[0])  # said again, it is the same process
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": rows}))
    found = read_trace(path)
    assert {name: [e.duration_us for e in events] for name, events in found.items()} == {
        "FULL": [1],
        "FULL #2": [2],
    }


def test_a_step_makes_a_trace_that_viewers_can_open(
    steps: dict[str, tuple[TraceEvent, ...]], tmp_path: Path
) -> None:
    path = tmp_path / "deep" / "trace.json"
    write_trace(path, steps)
    document = json.loads(path.read_text())
    check_chrome_schema(document)
    complete = [e for e in document["traceEvents"] if e["ph"] == "X"]
    assert len(complete) == sum(len(events) for events in steps.values())
    assert {e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"} == {
        "NONE",
        "FULL",
        CPU,
        GPU,
    }


def test_a_trace_reads_back_as_it_was_written(
    steps: dict[str, tuple[TraceEvent, ...]], tmp_path: Path
) -> None:
    write_trace(tmp_path / "t.json", steps)
    again = read_trace(tmp_path / "t.json")
    assert list(again) == list(steps)
    for mode, events in steps.items():
        assert [e.name for e in again[mode]] == [e.name for e in events]
        assert busy_us(again[mode], GPU) == pytest.approx(busy_us(events, GPU), abs=0.1)


def test_busy_time_is_the_union_without_waits() -> None:
    events = [
        TraceEvent(GPU, "a", 0, 10),
        TraceEvent(GPU, "b", 5, 10),
        TraceEvent(GPU, "c", 20, 5),
        TraceEvent(GPU, "w", 30, 50, "wait"),
        TraceEvent(CPU, "d", 0, 100),
    ]
    assert busy_us(events, GPU) == 20


def one_event(**changed: object) -> str:
    """A trace of one event, with some of its fields changed."""
    event = {"ph": "X", "pid": 1, "tid": 1, "name": "k", "ts": 0, "dur": 1}
    return json.dumps({"traceEvents": [event | changed]})


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("{", "not JSON"),
        ('{"events": []}', "traceEvents"),
        ('{"traceEvents": [{"ph": "X", "pid": 1, "tid": 1, "name": "k"}]}', "event 0: ts"),
        ('{"traceEvents": [3]}', "event 0 is 3"),
        (one_event(ts="soon"), "event 0: ts is 'soon'"),
        (one_event(pid=[1]), r"event 0: pid is \[1\]"),
        (one_event(ph="M", name="process_name"), "event 0: args"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(text: str, names: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=names) as error:
        read_trace(path)
    assert str(path) in str(error.value)
