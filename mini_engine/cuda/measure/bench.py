"""The benchmark: how long a decode step takes, arm after arm, and why one may believe it.

In:  a model, batches, contexts, arms, a `DeviceSpec` to predict with. Out: one row an arm, told as
soon as it is known, so that a run which is cut short keeps what it has measured.

For each (shape, batch, context) a stage is set; then for each arm: can it run here? prepare; the
gate; laps in turns with the anchor, AB BA; what the profiler counts; what the simulator says.
Only dependent decode steps are timed: the sampled token is fed back on the device, and no lap
contains a prefill, a copy from the host or a read-back. The prediction leaves those out, too.

    point = Point("qwen3-0.6b", batch=1, context=512)
    for row in bench_point(graphs, weights, point, list(ARMS), effort, spec, copy_gb_s=4300):
        print(row["arm"], row["status"])

These are the rows of one process; `bench_rows.py` joins those of several.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch._C._autograd import DeviceType

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.measure import gate
from mini_engine.cuda.measure.arms import ANCHOR, ARMS, ArmKind
from mini_engine.cuda.measure.evidence import gpu_state
from mini_engine.cuda.measure.gate import Gate
from mini_engine.cuda.measure.plain_arms import OursEager
from mini_engine.cuda.measure.rows import Point, Row, Run, gate_failed, measured_row, not_run
from mini_engine.cuda.measure.stage import BLOCK_SIZE, Arm, Stage, float32_stage, set_stage
from mini_engine.cuda.measure.timing import paired_laps
from mini_engine.cuda.weights import Weights
from mini_engine.model.config import ModelConfig
from mini_engine.predict.capacity import kv_bytes_per_token, read_bytes
from mini_engine.predict.curves import STORED_AS
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.oplists import OpCost
from mini_engine.predict.step_cost import Mode, step_time

LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch", "cudaMemcpyAsync",
            "cudaMemsetAsync")  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How long to measure. `deadline` is a moment of `time.monotonic()`, None for no limit."""

    rounds: int  # laps of each arm; even
    steps: int  # decode steps a lap
    deadline: float | None = None

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


def bench_point(
    backend: GraphBackend,
    weights: Weights,
    point: Point,
    names: Sequence[str],
    effort: Effort,
    spec: DeviceSpec,
    copy_gb_s: float,
) -> Iterator[Row]:
    """A row for each arm: measured, or why it was not. Raises ValueError for unknown arms."""
    check_names(names)
    room = max(point.context + effort.steps + BLOCK_SIZE, gate.room_of(point.batch))
    try:
        with torch.no_grad():
            stage = set_stage(backend, weights, point.batch, point.context, room)
            judge, anchor = _gate_of(stage), ARMS[ANCHOR].make(stage)
            anchor.prepare()
    except (torch.OutOfMemoryError, ValueError) as error:
        yield from (not_run(point, name, first_line(error)) for name in names)
        return
    for name in names:
        with torch.no_grad():
            row = _bench_arm(stage, judge, anchor, point, name, effort, spec, copy_gb_s)
        _clean(backend)
        yield row
    anchor.release()


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that is no arm."""
    for name in names:
        if name not in ARMS:
            raise ValueError(f"no arm {name!r}: use some of {', '.join(ARMS)}")


def must_move_bytes(config: ModelConfig, batch: int, context: int) -> int:
    """What no decode step can avoid to read: all weights and all keys and values, once."""
    stored = STORED_AS[config.dtype]
    return read_bytes(config, stored) + batch * context * kv_bytes_per_token(config, stored)


def predicted_us(ops: Sequence[OpCost], steps: int, spec: DeviceSpec, mode: Mode) -> float:
    """The simulator's µs for one of `steps` decode steps that `ops` are.

    Steps follow one another on the device: engine, copy of the inputs and read-back are left out.
    """
    fed_on_device = replace(spec, host_step_us=0.0, copy_us=0.0, sync_us=0.0)
    return step_time(ops, fed_on_device, mode).itl_us / steps


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    kind = "out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
    return f"{kind}: {lines[0]}"[:300] if lines else kind


# ---------------------------------------------------------------- one arm


@dataclass(frozen=True)
class _Laps:
    """An arm as `timing` wants it."""

    stage: Stage
    arm: Arm

    @property
    def steps_a_call(self) -> int:
        return self.arm.steps_a_call

    def rewind(self) -> None:
        self.arm.place(self.stage.first_tokens, self.stage.context)

    def step(self) -> None:
        self.arm.step()


def _gate_of(stage: Stage) -> Gate:
    wide = float32_stage(stage, gate.CONTEXT, gate.room_of(stage.batch))
    return Gate(stage, OursEager(stage), OursEager(wide))


def _bench_arm(
    stage: Stage,
    judge: Gate,
    anchor: Arm,
    point: Point,
    name: str,
    effort: Effort,
    spec: DeviceSpec,
    copy_gb_s: float,
) -> Row:
    kind = ARMS[name]
    reason = kind.why_not(stage.backend)
    if effort.over:
        reason = "the time of this run was over: go on with --resume"
    if reason:
        return not_run(point, name, reason)
    arm: Arm | None = None
    try:
        began = time.perf_counter()
        arm = kind.make(stage)
        arm.prepare()
        stage.backend.synchronize()
        prepare_s = time.perf_counter() - began
        verdict = judge.judge(arm)
        if kind.gated and not verdict.passed:
            return gate_failed(point, name, verdict.reason, verdict.as_dict())
        run = _timed(stage, anchor, arm, effort, prepare_s)
        facts = {**_facts(stage, arm, kind, spec), "gate": verdict.as_dict()}
        return measured_row(point, name, facts, run, copy_gb_s)
    except Exception as error:  # one arm that breaks must not take the others' figures with it
        return not_run(point, name, first_line(error))
    finally:
        if arm is not None:
            arm.release()


def _timed(stage: Stage, anchor: Arm, arm: Arm, effort: Effort, prepare_s: float) -> Run:
    """Laps in turns with the anchor."""
    anchors, laps = paired_laps(
        stage.backend,
        _Laps(stage, anchor),
        _Laps(stage, arm),
        steps=effort.steps,
        rounds=effort.rounds,
    )
    return Run(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        prepare_s=round(prepare_s, 3),
        itl_laps_us=[lap.event_us for lap in laps],
        anchor_laps_us=[lap.event_us for lap in anchors],
        wall_laps_us=[lap.wall_us for lap in laps],
        gpu_state={} if stage.backend.emulated else gpu_state(),
    )


def _facts(stage: Stage, arm: Arm, kind: ArmKind, spec: DeviceSpec) -> Row:
    """What an arm launches and moves, and what the simulator says of that."""
    kernels, launches = count_launches(stage.backend, arm.step)
    arm.place(stage.first_tokens, stage.context)
    ops = arm.ops()
    return {
        "steps_a_call": arm.steps_a_call,
        "kernels_a_call": kernels,
        "launches_a_call": launches,
        "ops_a_call": len(ops),
        "bytes_to_move": must_move_bytes(stage.model.config, stage.batch, stage.context),
        "bytes_by_op_list": round(sum(op.bytes for op in ops) / arm.steps_a_call),
        "predicted_us": round(predicted_us(ops, arm.steps_a_call, spec, kind.mode), 3),
    }


def count_launches(
    backend: GraphBackend, call: Callable[[], object]
) -> tuple[int | None, int | None]:
    """(kernels, launches) of one call, by the profiler; (None, None) where there is no GPU.

    A replayed graph is one launch and all of its kernels.
    """
    if backend.emulated:
        return None, None
    from torch.profiler import ProfilerActivity, profile

    call()
    backend.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        backend.synchronize()
    return counted(profiler.events())


def counted(events: Iterable[Any]) -> tuple[int | None, int | None]:
    """Kernels and launches among a profiler's events; None for a kind that it did not see."""
    events = [event for event in events if not event.is_user_annotation]
    copies = ("Memcpy", "Memset")
    kernels = [
        e for e in events if e.device_type == DeviceType.CUDA and not e.name.startswith(copies)
    ]
    launches = [
        e for e in events if e.device_type != DeviceType.CUDA and e.name.startswith(LAUNCHES)
    ]
    return len(kernels) or None, len(launches) or None


def _clean(backend: GraphBackend) -> None:
    """Give an arm's memory back before the next one."""
    gc.collect()
    if not backend.emulated:
        torch.cuda.empty_cache()
