"""The trace file is what Perfetto and chrome://tracing read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mini_engine.model.config import named_shape
from mini_engine.sim.predict import predict
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us, write_trace
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


def test_busy_time_is_the_union_without_waits() -> None:
    events = [
        TraceEvent(GPU, "a", 0, 10),
        TraceEvent(GPU, "b", 5, 10),
        TraceEvent(GPU, "c", 20, 5),
        TraceEvent(GPU, "w", 30, 50, "wait"),
        TraceEvent(CPU, "d", 0, 100),
    ]
    assert busy_us(events, GPU) == 20
