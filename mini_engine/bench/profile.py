"""A decode step of the real engine as a timeline: what CPU and GPU did, seen by the profiler.

In:  a `GraphBackend`, `Weights`, a mode, a batch, a context. Out: a `Profile`: the `TraceEvent`s
     of one steady step, with the lanes and categories of the simulator's own timelines, and the
     ops of the step, for the simulator to predict.

    profile = profile_step(graphs, weights, "FULL", batch=1, context=512)
    write_trace(path, {"predicted FULL": play(profile.ops, spec, profile.launched)[0],
                       "measured FULL": profile.timeline})

The engine runs as always: scheduler, dispatcher, runner, real graphs on a GPU and emulated ones on
a CPU. Profiling itself costs time: `bench` says how long a step takes, this shows where it goes.

The profiler's rows are kineto's (pytorch/kineto, libkineto: categories in ActivityType.cpp, `args`
in CuptiActivity.h, layout in output_json.cpp): `ph` "X", `ts` and `dur` in µs, `args.correlation`
the same for a call and for everything that it starts on the GPU.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from mini_engine.bench.decode_setup import build_engine
from mini_engine.bench.op_record import OpRecorder, WatchedAttention
from mini_engine.cuda.generate import Kernels
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import is_out_of_memory, no_garbage_collection
from mini_engine.cuda.runner import TorchRunner
from mini_engine.cuda.weights import Weights
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request
from mini_engine.engine.engine import Engine, StepRecord
from mini_engine.sim.trace import CPU, GPU, TraceEvent
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import LAUNCHED_AS, Mode

WARM_UP, STEPS = 3, 5  # decode steps before the profiler, and under it
STEP = "decode step"  # what a step is called in the rows
PYTHON = "Python"  # what the CPU does outside of any op
CALLS = {  # by the beginning of a CUDA call's name; other calls are host work
    "cudaGraphLaunch": "graph",
    "cuGraphLaunch": "graph",
    "cudaLaunch": "launch",
    "cuLaunch": "launch",
    "cudaMem": "copy",
    "cuMem": "copy",
}
CALLING = ("cuda_runtime", "cuda_driver")
ON_GPU = {"kernel": "kernel", "gpu_memcpy": "copy", "gpu_memset": "copy"}
ProfilerRow = Mapping[str, Any]  # one element of `traceEvents`


@dataclass(frozen=True)
class Profile:
    """One step, which starts at time 0 of the timeline."""

    timeline: tuple[TraceEvent, ...]
    ops: tuple[OpCost, ...]  # of this very step
    launched: Mode  # how its ops are launched, for the simulator


@torch.no_grad()  # in inference mode a recorder sees linear, and not the mm that it calls
def profile_step(
    backend: GraphBackend,
    weights: Weights,
    mode: str,
    *,
    batch: int,
    context: int,
    kernels: Kernels = 0,
) -> Profile:
    """Decode a few steps of `batch` requests with `context` tokens; keep one of median length.

    With `kernels` of ours a layer, if they can run here; else by the plain model.

    Raises ValueError for a context that is too short or too long, for too little memory, and for a
    profiler that saw nothing of the GPU.
    """
    config = weights.config
    prompt = context - WARM_UP - (STEPS + 1) // 2  # so that the middle step has `context` tokens
    new_tokens = 1 + WARM_UP + STEPS + 1  # none ends under the profiler
    room = prompt + new_tokens
    if prompt < 1 or room > config.max_position_embeddings:
        raise ValueError(
            f"context {context}: expected {context - prompt + 1} to "
            f"{config.max_position_embeddings - room + context} tokens for {config.name}: a "
            f"prompt, {WARM_UP} steps to warm up, {STEPS} steps to profile"
        )
    try:
        engine, runner = build_engine(
            weights, backend, mode, batch=batch, room=room, budget=batch * prompt, kernels=kernels
        )
        try:
            draw = torch.Generator().manual_seed(0)
            ids = torch.randint(config.vocab_size, (batch, prompt), generator=draw)
            for name, tokens in enumerate(ids.tolist()):
                engine.submit(Request(str(name), tokens, new_tokens))
            for _ in range(1 + WARM_UP):  # the first step is the prefill of all prompts
                engine.step()
            rows, record = _profiled(engine, backend)
            ops = _ops_of(runner, record, batch, context)
        finally:
            runner.release()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise ValueError(
            f"out of device memory with batch {batch} and context {context}: give smaller ones "
            f"({str(error).splitlines()[0]})"
        ) from None
    timeline = events_of_profile(rows)
    if hasattr(runner.model, "kernels_of"):
        timeline = named(timeline, [op.name for op in ops])
    if not backend.emulated and not any(event.lane == GPU for event in timeline):
        raise ValueError(
            "the profiler saw nothing on the GPU: end other profilers, or set KINETO_LOG_LEVEL=1 "
            "to hear what CUPTI says"
        )
    return Profile(tuple(timeline), tuple(ops), LAUNCHED_AS[record.descriptor.mode])


def process_name(mode: str, *, emulated: bool) -> str:
    """The name of a measured step in a trace."""
    remark = " (CPU, emulated graphs: the CPU runs the kernels, there is no GPU lane)"
    return f"measured {mode}" + (remark if emulated else "")


def _profiled(engine: Engine, backend: GraphBackend) -> tuple[list[ProfilerRow], StepRecord]:
    """STEPS dependent steps under the profiler: its rows, and the last step."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it logs its start and its end
    from torch.profiler import ProfilerActivity, profile, record_function

    watched = [ProfilerActivity.CPU]
    if not backend.emulated:
        watched.append(ProfilerActivity.CUDA)
    with no_garbage_collection(), profile(activities=watched) as profiler:
        for _ in range(STEPS):
            with record_function(STEP):
                record = engine.step()  # reads its tokens back: the GPU is done when it returns
    assert record, "requests ended under the profiler"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(path))
        return json.loads(path.read_text())["traceEvents"], record


def _ops_of(runner: TorchRunner, record: StepRecord, size: int, context: int) -> list[OpCost]:
    """The ops of the last step. Those of the kernels are listed; the plain model's are recorded
    while it is computed again, which changes nothing."""
    batch, mode = record.batch, record.descriptor.mode
    if count := getattr(runner.model, "kernels_of", None):
        style = f"fused{9 if mode is CUDAGraphMode.PIECEWISE else count(size)}"
        return step_ops(runner.model.config, StepShape.decode(size, context), style)
    recorder = OpRecorder()
    with recorder:
        if mode is CUDAGraphMode.FULL:
            runner.full.forward(record.descriptor.num_tokens)
        else:
            step = runner.inputs.view(batch.num_tokens, batch.num_reqs)
            attention = WatchedAttention(runner.model.live_attention(batch), recorder)
            hidden = runner.model.body(step, attention)
            with recorder.live():
                runner.model.head(hidden, step, runner.sample)
    return recorder.ops


# ---------------------------------------------------------------- the profiler's rows as two lanes


def events_of_profile(rows: Iterable[ProfilerRow]) -> list[TraceEvent]:
    """The step of median length among `rows`, in µs from its start: what each lane did when.

    Lane CPU: calls into CUDA (launch, graph, copy, wait), and around them the op that makes them,
    or Python (host). Lane GPU: what the step's calls started, by correlation id (kernel, node,
    copy). Rows of any other kind are skipped. No two boxes of a lane overlap.

    Raises ValueError when there is no step.
    """
    complete = [row for row in rows if row.get("ph") == "X"]
    steps = [r for r in complete if r["cat"] == "user_annotation" and r["name"] == STEP]
    if not steps:
        raise ValueError(f"no step among the rows: expected a user_annotation named {STEP!r}")
    step = sorted(steps, key=lambda row: row["dur"])[len(steps) // 2]

    def inside(row: ProfilerRow) -> bool:
        return bool(step["ts"] <= row["ts"] < step["ts"] + step["dur"])

    place = (step["pid"], step["tid"])
    thread = [row for row in complete if (row["pid"], row["tid"]) == place and inside(row)]
    calls = [row for row in thread if row["cat"] in CALLING]
    # By correlation id and not by time, since the two clocks agree only to about a µs. Where a
    # library launches in a way that kineto does not follow, the call is unknown and time decides.
    known = {_correlation(row) for row in complete if row["cat"] in CALLING}
    ours = {_correlation(row) for row in calls}
    started = [
        row
        for row in complete
        if row["cat"] in ON_GPU
        and (_correlation(row) in ours if _correlation(row) in known else inside(row))
    ]
    # A copy to pageable memory returns when it is done (CUDA Runtime API, "API synchronization
    # behavior"), so it is a wait of the CPU: that is how PyTorch reads a token back.
    waits = {_correlation(row) for row in started if row["name"].endswith("-> Pageable)")}

    def of_call(row: ProfilerRow) -> str:
        if row["name"].endswith("Synchronize") or _correlation(row) in waits:
            return "wait"
        kinds = [kind for start, kind in CALLS.items() if row["name"].startswith(start)]
        return kinds[0] if kinds else "host"

    boxes = [TraceEvent(CPU, PYTHON, step["ts"], step["dur"], "host")]
    ops = [_event(CPU, row, "host") for row in thread if row["cat"] == "cpu_op"]
    for op in sorted(ops, key=_outer_first):
        if op.start_us >= boxes[-1].end_us or len(boxes) == 1:  # an op, not the ops that it calls
            boxes.append(op)
    boxes += [_event(CPU, row, of_call(row)) for row in calls]
    busy = [  # outside a graph, the node id is 0
        _event(GPU, row, "node" if row["args"].get("graph node id") else ON_GPU[row["cat"]])
        for row in started
    ]
    lanes = [*_innermost(boxes), *_in_turn(busy)]
    return [replace(event, start_us=event.start_us - step["ts"]) for event in lanes]


def named(events: Sequence[TraceEvent], ops: Sequence[str]) -> list[TraceEvent]:
    """The events with our kernels called by the step's own list: "o_proj_add (linear_kernel)".

    The kernels of a GPU run in the order of the list, and so do our ops on a CPU, where PyTorch
    looks up the embedding, the list's first. Where there are not as many, names stay as they are.
    """
    found = list(events)
    kernels = [
        i
        for i, e in enumerate(events)
        if e.category in ("kernel", "node") and not e.name.startswith(("Memcpy", "Memset"))
    ]
    emulated = [i for i, e in enumerate(events) if e.name.startswith("launch_bound::")]
    for places, names in ((kernels, ops), (emulated, ops[1:])):
        if len(places) == len(names):
            for i, name in zip(places, names, strict=True):
                found[i] = replace(events[i], name=f"{name} ({events[i].name})")
    return found


def _correlation(row: ProfilerRow) -> int | None:
    found: int | None = row.get("args", {}).get("correlation")
    return found


def _event(lane: str, row: ProfilerRow, category: str) -> TraceEvent:
    return TraceEvent(lane, row["name"], row["ts"], row["dur"], category)


def _outer_first(box: TraceEvent) -> tuple[float, float]:
    return box.start_us, -box.duration_us


def _innermost(boxes: Sequence[TraceEvent]) -> Iterator[TraceEvent]:
    """Nested boxes side by side: at each moment the innermost one."""
    stack: list[TraceEvent] = []
    at = 0.0  # up to here everything is drawn
    ends = TraceEvent(CPU, "", float("inf"), 0.0)
    for box in [*sorted(boxes, key=_outer_first), ends]:
        while stack and (at < box.start_us or stack[-1].end_us <= box.start_us):
            top = stack[-1]
            until = min(top.end_us, box.start_us)
            if until > at:
                yield replace(top, start_us=at, duration_us=until - at)
                at = until
            if top.end_us <= box.start_us:
                stack.pop()
        stack.append(box)
        at = box.start_us


def _in_turn(boxes: Iterable[TraceEvent]) -> Iterator[TraceEvent]:
    """Boxes that start no earlier than the last one ends. Kernels overlap on two streams, or when
    one starts while the last drains; the lane stays busy for as long as it was."""
    free = float("-inf")
    for box in sorted(boxes, key=lambda b: b.start_us):
        start = max(box.start_us, free)
        free = max(start, box.end_us)
        yield replace(box, start_us=start, duration_us=free - start)
