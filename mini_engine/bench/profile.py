"""A decode step of the real engine as a timeline: what CPU and GPU did, seen by the profiler.

In:  a `GraphBackend`, `Weights`, a mode, a batch, a context. Out: a `Profile`: the `TraceEvent`s
     of one steady step, with the lanes and categories of the simulator's own timelines, and the
     ops of the step, for the simulator to predict.

    profile = profile_step(graphs, weights, "FULL", batch=1, context=512)
    write_trace(path, {"predicted FULL": play(profile.ops, spec, profile.launched)[0],
                       "measured FULL": profile.timeline})

The engine runs as always: scheduler, dispatcher, runner, real graphs on a GPU and emulated ones on
a CPU. Profiling itself costs time: `bench` says how long a step takes, this shows where it goes.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Sequence
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
from mini_engine.sim.recorded import STEP, events_of_profile
from mini_engine.sim.trace import GPU, TraceEvent
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import LAUNCHED_AS, Mode

WARM_UP, STEPS = 3, 5  # decode steps before the profiler, and under it


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
    timeline = list(events_of_profile(rows, flat=True))
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


def recorded_by_profiler(backend: GraphBackend, work: Callable[[], object]) -> list[dict[str, Any]]:
    """What PyTorch's profiler writes of `work`: its `traceEvents`."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or it logs its start and its end
    from torch.profiler import ProfilerActivity, profile

    watched = [ProfilerActivity.CPU]
    if not backend.emulated:
        watched.append(ProfilerActivity.CUDA)
    with no_garbage_collection(), profile(activities=watched) as profiler:
        work()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "profile.json"
        profiler.export_chrome_trace(str(path))
        listed: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    return listed


def _profiled(engine: Engine, backend: GraphBackend) -> tuple[list[dict[str, Any]], StepRecord]:
    """STEPS dependent steps under the profiler: its rows, and the last step."""
    records = []

    def steps() -> None:
        for number in range(STEPS):
            with torch.profiler.record_function(f"{STEP}{number}"):
                # reads its tokens back: the GPU is done when it returns
                records.append(engine.step())

    rows = recorded_by_profiler(backend, steps)
    assert records[-1], "requests ended under the profiler"
    return rows, records[-1]


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


def named(events: Sequence[TraceEvent], ops: Sequence[str]) -> list[TraceEvent]:
    """The events with our kernels called by the step's own list: "o_proj_add (linear_kernel)".

    The kernels of a GPU run in the order of the list, and so do our ops on a CPU, where PyTorch
    looks up the embedding, the list's first. Where there are not as many, names stay as they are.
    """
    found = list(events)
    kernels = [i for i, e in enumerate(events) if e.category in ("kernel", "node")]
    emulated = [i for i, e in enumerate(events) if e.name.startswith("launch_bound::")]
    for places, names in ((kernels, ops), (emulated, ops[1:])):
        if len(places) == len(names):
            for i, name in zip(places, names, strict=True):
                found[i] = replace(events[i], name=f"{name} ({events[i].name})")
    return found
