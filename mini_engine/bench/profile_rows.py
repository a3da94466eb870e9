"""What `torch.profiler` exported, as the two lanes of one decode step. A pure function, no torch.

In:  rows: the `traceEvents` of the exported file, with steps marked by `record_function`.
Out: `TraceEvent`s of one step, in µs from its start, with the simulator's lanes and categories.

    events_of_profile(json.loads(path.read_text())["traceEvents"])

The format is kineto's (pytorch/kineto, libkineto: categories in ActivityType.cpp, `args` in
CuptiActivity.h and MetadataFieldCatalog.h, layout in output_json.cpp): `ph` "X", `ts` and `dur` in
µs, `args.correlation` the same for a call and for everything that it starts on the GPU.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from mini_engine.sim.trace import CPU, GPU, TraceEvent

ProfilerRow = Mapping[str, Any]  # one element of `traceEvents`

STEP = "decode step"  # what a step is called in the rows
PYTHON = "Python"  # what the CPU does outside of any op
CALLS = {  # by the beginning of a CUDA call's name; other calls are host work
    "cudaGraphLaunch": "graph",
    "cuGraphLaunch": "graph",
    "cudaLaunch": "launch",
    "cuLaunch": "launch",
    "cudaMemcpy": "copy",
    "cuMemcpy": "copy",
    "cudaMemset": "copy",
    "cuMemset": "copy",
}
CALLING = ("cuda_runtime", "cuda_driver")
ON_GPU = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}


def events_of_profile(rows: Iterable[ProfilerRow]) -> list[TraceEvent]:
    """The step of median length among `rows`: what each lane did at each moment.

    Lane CPU: calls into CUDA (launch, graph, copy, wait), and around them the op that makes them,
    or Python (host). Lane GPU: what the step's calls started, by correlation id (kernel, node,
    copy). Rows of any other kind are skipped. No two boxes of a lane overlap: Perfetto draws a
    thread as a stack.

    Raises ValueError when there is no step.
    """
    complete = [row for row in rows if row.get("ph") == "X"]
    steps = [r for r in complete if r["cat"] == "user_annotation" and r["name"] == STEP]
    if not steps:
        raise ValueError(f"no step among the rows: expected a user_annotation named {STEP!r}")
    step = sorted(steps, key=lambda row: row["dur"])[len(steps) // 2]
    thread = [row for row in complete if _place(row) == _place(step) and _begins_in(step, row)]
    calls = [row for row in thread if row["cat"] in CALLING]
    started = _started(complete, calls, step)
    waits = _ids(row for row in started if row["name"].endswith("-> Pageable)"))

    host = [_event(CPU, step, "host", PYTHON)]
    ops = [_event(CPU, row, "host") for row in thread if row["cat"] == "cpu_op"]
    calling = [_event(CPU, row, _kind_of_call(row, waits)) for row in calls]
    busy = [_event(GPU, row, _kind_on_gpu(row)) for row in started]
    lanes = _painted(_painted(host, _outermost(ops)), _outermost(calling)) + _in_turn(busy)
    return [replace(event, start_us=event.start_us - step["ts"]) for event in lanes]


def _started(
    complete: Sequence[ProfilerRow], calls: Sequence[ProfilerRow], step: ProfilerRow
) -> list[ProfilerRow]:
    """What ran on the GPU for the step.

    Found by correlation id and not by time, since the two clocks agree only to about a µs. Where
    the call is unknown, because a library launches in a way that kineto does not follow, time
    decides.
    """
    known, ours = _ids(row for row in complete if row["cat"] in CALLING), _ids(calls)
    return [
        row
        for row in complete
        if row["cat"] in ON_GPU
        and (_correlation(row) in ours if _correlation(row) in known else _begins_in(step, row))
    ]


def _kind_of_call(row: ProfilerRow, waits: Container[int | None]) -> str:
    """A copy to pageable memory returns when it is done (CUDA Runtime API, "API synchronization
    behavior"), so it is a wait on lane CPU: that is how PyTorch reads a token back."""
    name = row["name"]
    if name.endswith("Synchronize") or _correlation(row) in waits:
        return "wait"
    return next((kind for start, kind in CALLS.items() if name.startswith(start)), "host")


def _kind_on_gpu(row: ProfilerRow) -> str:
    """Outside a graph, the node id is 0."""
    return "node" if row["args"].get("graph node id") else ON_GPU[row["cat"]]


def _correlation(row: ProfilerRow) -> int | None:
    found: int | None = row.get("args", {}).get("correlation")
    return found


def _ids(rows: Iterable[ProfilerRow]) -> set[int]:
    return {found for row in rows if (found := _correlation(row)) is not None}


def _place(row: ProfilerRow) -> tuple[object, object]:
    return row["pid"], row["tid"]


def _begins_in(step: ProfilerRow, row: ProfilerRow) -> bool:
    return bool(step["ts"] <= row["ts"] < step["ts"] + step["dur"])


def _event(lane: str, row: ProfilerRow, category: str, name: str | None = None) -> TraceEvent:
    return TraceEvent(lane, name or row["name"], row["ts"], row["dur"], category)


# ---------------------------------------------------------------- boxes that do not overlap


def _outermost(boxes: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Boxes that no other box contains: an op, and not the ops that it calls."""
    kept: list[TraceEvent] = []
    for box in sorted(boxes, key=lambda b: (b.start_us, -b.duration_us)):
        if not kept or box.start_us >= kept[-1].end_us:
            kept.append(box)
    return kept


def _painted(below: Sequence[TraceEvent], above: Sequence[TraceEvent]) -> list[TraceEvent]:
    """Both, in order of time; the boxes below keep only the parts that are not covered."""
    seen = list(above)
    for box in below:
        at = box.start_us
        for top in above:
            if at < top.end_us and top.start_us < box.end_us:
                if at < top.start_us:
                    seen.append(_part(box, at, top.start_us))
                at = top.end_us
        if at < box.end_us:
            seen.append(_part(box, at, box.end_us))
    return sorted(seen, key=lambda b: b.start_us)


def _in_turn(boxes: Iterable[TraceEvent]) -> list[TraceEvent]:
    """Boxes that start no earlier than the last one ends. Kernels overlap on two streams, or when
    one starts while the last drains; the lane stays busy for as long as it was."""
    turns: list[TraceEvent] = []
    for box in sorted(boxes, key=lambda b: b.start_us):
        free = turns[-1].end_us if turns else box.start_us
        start = max(box.start_us, free)
        turns.append(_part(box, start, max(start, box.end_us)))
    return turns


def _part(box: TraceEvent, start_us: float, end_us: float) -> TraceEvent:
    return replace(box, start_us=start_us, duration_us=end_us - start_us)
