"""The benchmark: how long a decode step takes, variant by variant, and why to believe it.

In:  a model, a batch, a context, variants, and for each engine a `DeviceSpec` to predict with. Out:
     one row per variant, yielded as soon as it is known, so that an interrupted run keeps what it
     has measured.

Each (shape, batch, context) gets one `DecodeSetup`. Then, for each variant: can it run here?
prepare; the gate; laps in turns with the anchor, AB BA; what the simulator predicts. Only dependent
decode steps are timed: the sampled token is fed back on the device, and no lap contains a prefill,
a copy from the host or a read-back. The prediction leaves those out, too.

    point = Point("qwen3-0.6b", batch=1, context=512)
    for row in bench_point(graphs, weights, point, list(VARIANTS), effort, spec_for, 4300):
        print(row.variant, row.status)
    for row in count_launches(graphs, weights, point, rows):    # when every time has been taken
        print(row.kernels_a_call, row.launches_a_call)

The profiler counts kernels and launches, and a process that has loaded it launches more slowly from
then on. So it counts when nothing is left to time.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

import torch
from torch._C._autograd import DeviceType

from mini_engine.bench import gate
from mini_engine.bench.decode_setup import (
    BLOCK_SIZE,
    DecodeSetup,
    Variant,
    build_setup,
    float32_setup,
    in_format,
    stored_in,
)
from mini_engine.bench.evidence import gpu_state
from mini_engine.bench.gate import Gate, Verdict
from mini_engine.bench.intervals import median_interval, pooled_ratio
from mini_engine.bench.rows import GATE_FAILED, MEASURED, NOT_RUN, Point, Row, six
from mini_engine.bench.timing import Lap, paired_laps
from mini_engine.bench.variants import ANCHOR, COMPILED, VARIANTS, OursEager, VariantKind
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.weights import Weights
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.run import Mode, step_time, with_pdl

SpecFor = Callable[[str], DeviceSpec]  # by an engine's name, on the card and host at hand
OVER = "the time of this run was over: go on with --resume"
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch", "cudaMemcpyAsync",
            "cudaMemsetAsync")  # fmt: skip
# Of a call that is one graph: its launch, copies of inputs, the few ops that feed the token back.
# Without graphs, the smallest model that is measured launches more than a hundred.
MOST_LAUNCHES = 16


@dataclass(frozen=True)
class Effort:
    """How long to measure. `deadline` is a time of `time.monotonic()`, None for no limit."""

    rounds: int  # laps of each variant; even
    steps: int  # decode steps a lap
    deadline: float | None = None
    gate_steps: int = gate.STEPS[1]  # at most so many are compared with float32 on each path

    @property
    def over(self) -> bool:
        return self.deadline is not None and time.monotonic() > self.deadline


def bench_point(
    backend: GraphBackend,
    weights: Weights,
    point: Point,
    names: Sequence[str],
    effort: Effort,
    spec_for: SpecFor,
    copy_gb_s: float,
) -> Iterator[Row]:
    """A row for each variant: measured, or why it was not. ValueError for an unknown variant, and
    after the row of one that has left this process no device to go on with."""
    check_names(names)
    if effort.over:
        yield from (Row(*point, name, NOT_RUN, OVER) for name in names)
        return
    try:
        with torch.no_grad():
            setup = _setup(backend, weights, point, effort.steps)
            judge, anchor = gate_of(setup, effort.gate_steps), _anchor(setup)
    except (torch.OutOfMemoryError, ValueError) as error:
        yield from (Row(*point, name, NOT_RUN, first_line(error)) for name in names)
        return
    for name in names:
        with torch.no_grad():
            row = _bench_variant(setup, judge, anchor, point, name, effort, spec_for, copy_gb_s)
        yield row  # it is in the file before a broken device ends this process
        _clean(backend, name)
        if VARIANTS[name].engine == COMPILED:
            # torch.compile with CUDA graphs clears cuBLAS's workspaces, which the anchor's graph
            # may hold (torch/_inductor/cudagraph_trees.py): what it replays then is not its own.
            anchor.release()
            with torch.no_grad():
                anchor = _anchor(setup)
    anchor.release()


def count_launches(
    backend: GraphBackend, weights: Weights, point: Point, rows: Iterable[Row], effort: Effort
) -> Iterator[Row]:
    """The measured rows of a point, with the kernels and launches that the profiler counts in a
    call. Nothing in this process may be timed afterwards. Without a GPU there is nothing to
    count."""
    todo = [row for row in rows if row.status == MEASURED and row.launches_a_call is None]
    if backend.emulated or not todo:
        return
    with torch.no_grad():
        setup = _setup(backend, weights, point, effort.steps)
        for row in todo:
            if effort.over:
                return
            kind = VARIANTS[row.variant]
            variant = kind.make(setup)
            try:
                variant.prepare()
                kernels, launches = profiled(backend, variant.step)
            finally:
                variant.release()
                _clean(backend, row.variant)
            without = without_graph(kind.mode, launches)
            yield replace(row, kernels_a_call=kernels, launches_a_call=launches, no_graph=without)


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that is no variant."""
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"no variant {name!r}: use some of {', '.join(VARIANTS)}")


def gate_of(setup: DecodeSetup, most_steps: int = gate.STEPS[1]) -> Gate:
    """The gate for everything that decodes on this setup."""
    wide = float32_setup(setup, gate.CONTEXT, gate.room_of(setup.batch))
    return Gate(setup, OursEager(setup), OursEager(wide), most_steps)


def predicted_us(
    ops: Sequence[OpCost], steps: int, spec: DeviceSpec, mode: Mode, *, pdl: bool = False
) -> float:
    """The simulator's µs for one decode step, where `ops` are `steps` of them.

    Steps follow one another on the device: engine, copy of the inputs and read-back are left out.
    With `pdl`, the nodes of a graph overlap.
    """
    if pdl:
        spec = with_pdl(spec)
    fed_on_device = replace(
        spec, host_step_us=0.0, ahead_us=0.0, request_us=0.0, copy_us=0.0, sync_us=0.0
    )
    return step_time(ops, fed_on_device, mode).itl_us / steps


def first_line(error: BaseException) -> str:
    """An error in one line."""
    lines = str(error).strip().splitlines()
    kind = "out of memory" if isinstance(error, torch.OutOfMemoryError) else type(error).__name__
    return f"{kind}: {lines[0]}"[:300] if lines else kind


# ---------------------------------------------------------------- one variant


def _setup(backend: GraphBackend, weights: Weights, point: Point, steps: int) -> DecodeSetup:
    """Room for laps of so many steps, and for the gate."""
    room = max(point.context + steps + BLOCK_SIZE, gate.room_of(point.batch))
    return build_setup(backend, weights, point.batch, point.context, room)


def _anchor(setup: DecodeSetup) -> Variant:
    anchor = VARIANTS[ANCHOR].make(setup)
    anchor.prepare()
    return anchor


def _bench_variant(
    setup: DecodeSetup,
    judge: Gate,
    anchor: Variant,
    point: Point,
    name: str,
    effort: Effort,
    spec_for: SpecFor,
    copy_gb_s: float,
) -> Row:
    kind = VARIANTS[name]
    reason = OVER if effort.over else kind.why_not(setup.backend)
    if reason:
        return Row(*point, name, NOT_RUN, reason)
    variant: Variant | None = None
    try:
        began = time.perf_counter()
        variant = kind.make(setup)
        variant.prepare()
        setup.backend.synchronize()
        prepare_s = six(time.perf_counter() - began)
        verdict = _verdict(kind, setup, judge, variant, effort)
        if kind.gated and not verdict.passed:
            return Row(*point, name, GATE_FAILED, verdict.reason, gate=verdict.as_dict())
        laps = paired_laps(setup.backend, anchor, variant, steps=effort.steps, rounds=effort.rounds)
        variant.rewind()
        ops, steps = variant.ops(), variant.steps_a_call
        row = Row(
            *point,
            name,
            MEASURED,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            gate=verdict.as_dict(),
            prepare_s=prepare_s,
            steps_a_call=steps,
            bytes_to_move=must_move_bytes(setup, kind),
            predicted_us=six(_predicted(kind, setup, ops, steps, spec_for(kind.engine))),
            gpu_state={} if setup.backend.emulated else gpu_state(),
        )
        return _with_laps(row, *laps, copy_gb_s)
    except Exception as error:  # a variant that breaks must not take the others' figures with it
        return Row(*point, name, NOT_RUN, first_line(error))
    finally:
        if variant is not None:
            with suppress(RuntimeError):  # of a broken device, which `_clean` tells
                variant.release()


def _verdict(
    kind: VariantKind, setup: DecodeSetup, judge: Gate, variant: Variant, effort: Effort
) -> Verdict:
    """What the gate says. A format of few bits has a gate of its own, whose truth is these very
    weights, or this cache, in float32: it says whether the kernels are right. Whether the format
    will do is the business of tests/bench/test_quality.py."""
    if kind.few_bits is not None:
        judge = gate_of(in_format(setup, kind.few_bits), effort.gate_steps)
    return judge.judge(variant)


def _with_laps(row: Row, anchors: Sequence[Lap], laps: Sequence[Lap], copy_gb_s: float) -> Row:
    """The row with the figures that follow from its laps and the anchor's."""
    ours, theirs = ([six(lap.event_us) for lap in one] for one in (laps, anchors))
    itl = median_interval(ours)
    gb_s = row.bytes_to_move / itl.median / 1e3
    return replace(
        row,
        itl_laps_us=tuple(ours),
        anchor_laps_us=tuple(theirs),
        itl=itl.rounded(),
        wall=median_interval([lap.wall_us for lap in laps]).rounded(),
        times_the_anchor=pooled_ratio([theirs], [ours]).rounded(),
        achieved_gb_s=six(gb_s),
        percent_of_copy=six(100 * gb_s / copy_gb_s),
        predicted_percent_off=six(100 * (row.predicted_us / itl.median - 1)),
    )


def must_move_bytes(setup: DecodeSetup, kind: VariantKind) -> int:
    """What every decode step has to read: all weights and all keys and values, once."""
    config = setup.model.config
    stored = stored_in(config, kind.few_bits)
    return stored.read + setup.batch * setup.context * stored.kv_bytes_per_token(config)


def _predicted(
    kind: VariantKind, setup: DecodeSetup, ops: Sequence[OpCost], steps: int, spec: DeviceSpec
) -> float:
    """From the variant's own ops. A compiler makes others of them: those that its engine's file
    says."""
    if kind.engine == COMPILED:
        shape = StepShape.decode(setup.batch, setup.context)
        ops, steps = step_ops(setup.model.config, shape, spec.ops), 1
    return predicted_us(ops, steps, spec, kind.mode, pdl=kind.pdl)


def _clean(backend: GraphBackend, name: str) -> None:
    """Give a variant's memory back before the next variant. ValueError where there can be none:
    after an illegal address, CUDA answers nothing else in this process."""
    gc.collect()
    try:
        backend.synchronize()
        if not backend.emulated:
            torch.cuda.empty_cache()
    except RuntimeError as error:
        raise ValueError(
            f"{name} has left no device to this process ({first_line(error)}): go on with --resume"
        ) from None


# ---------------------------------------------------------------- did it run as one graph?


def profiled(backend: GraphBackend, call: Callable[[], object]) -> tuple[int | None, int | None]:
    """(kernels, launches) of one call, by the profiler. A replayed graph counts as one launch and
    all of its kernels."""
    from torch.profiler import ProfilerActivity, profile

    call()
    backend.synchronize()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiler:
        call()
        backend.synchronize()
    return counted(profiler.events())


def counted(events: Iterable[Any]) -> tuple[int | None, int | None]:
    """How many kernels and launches a profiler saw among these events; None for none."""
    events = [event for event in events if not event.is_user_annotation]
    on_gpu = [e.name for e in events if e.device_type == DeviceType.CUDA]
    on_cpu = [e.name for e in events if e.device_type != DeviceType.CUDA]
    kernels = [name for name in on_gpu if not name.startswith(("Memcpy", "Memset"))]
    launches = [name for name in on_cpu if name.startswith(LAUNCHES)]
    return len(kernels) or None, len(launches) or None


def without_graph(mode: Mode, launches: int | None) -> str:
    """How many launches a step took that claims a graph and did not run as one; else nothing.

    `torch.compile(mode="reduce-overhead")` compiles a step without a graph where it thinks that one
    would not be safe, and goes on: the step is right, and slow. A baseline that ran like that is no
    baseline for graphs. TORCH_LOGS=perf_hints has the reasons.
    """
    without = mode == "full" and launches is not None and launches > MOST_LAUNCHES
    return f"{launches} launches" if without else ""
