"""The benchmark: how long a decode step takes, variant by variant, and why to believe it.

In:  a model, batches, contexts, variants, and for each engine a `DeviceSpec` to predict with. Out:
     one row per variant, yielded as soon as it is known, so that an interrupted run keeps what it
     has measured.

Each (shape, batch, context) gets one `DecodeSetup`. Then, for each variant: can it run here?
prepare; the gate; laps in turns with the anchor, AB BA; what the profiler counts; what the
simulator predicts. Only dependent decode steps are timed: the sampled token is fed back on the
device, and no lap contains a prefill, a copy from the host or a read-back. The prediction leaves
those out, too.

    point = Point("qwen3-0.6b", batch=1, context=512)
    for row in bench_point(graphs, weights, point, list(VARIANTS), effort, spec_for, 4300):
        print(row.variant, row.status)

These are the rows of one process; `table.py` joins those of several.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
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
)
from mini_engine.bench.evidence import gpu_state
from mini_engine.bench.few_bits import in_format, stored_in
from mini_engine.bench.gate import Gate
from mini_engine.bench.no_graph import skipped_graphs, without_graph
from mini_engine.bench.our_variants import OursEager
from mini_engine.bench.quality import quality_of
from mini_engine.bench.table import OVER, with_figures
from mini_engine.bench.timing import paired_laps
from mini_engine.bench.variants import ANCHOR, COMPILED, VARIANTS, VariantKind
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.weights import Weights
from mini_engine.model.config import ModelConfig
from mini_engine.records.rows import GATE_FAILED, MEASURED, NOT_RUN, Point, Row, Run, six
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import OpCost, StepShape, step_ops
from mini_engine.step.step_cost import Mode, step_time, with_pdl

SpecFor = Callable[[str], DeviceSpec]  # by an engine's name, on the card and host at hand
LAUNCHES = ("cudaLaunch", "cuLaunch", "cudaGraphLaunch", "cuGraphLaunch", "cudaMemcpyAsync",
            "cudaMemsetAsync")  # fmt: skip


@dataclass(frozen=True)
class Effort:
    """How long to measure. `deadline` is a time of `time.monotonic()`, None for no limit."""

    rounds: int  # laps of each variant; even
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
    spec_for: SpecFor,
    copy_gb_s: float,
) -> Iterator[Row]:
    """A row for each variant: measured, or why it was not. ValueError for an unknown variant, and
    after the row of one that has left this process no device to go on with."""
    check_names(names)
    if effort.over:
        yield from (Row(*point, name, NOT_RUN, OVER) for name in names)
        return
    room = room_for(point.batch, point.context, effort.steps)
    try:
        with torch.no_grad():
            setup = build_setup(backend, weights, point.batch, point.context, room)
            judge, anchor = gate_of(setup), VARIANTS[ANCHOR].make(setup)
            anchor.prepare()
    except (torch.OutOfMemoryError, ValueError) as error:
        yield from (Row(*point, name, NOT_RUN, first_line(error)) for name in names)
        return
    for name in names:
        with torch.no_grad():
            row = _bench_variant(setup, judge, anchor, point, name, effort, spec_for, copy_gb_s)
        yield row  # it is in the file before a broken device ends this process
        _clean(backend, name)
    anchor.release()


def room_for(batch: int, context: int, steps: int) -> int:
    """Tokens that each request must have room for: laps of so many steps, and the gate."""
    return max(context + steps + BLOCK_SIZE, gate.room_of(batch))


def check_names(names: Iterable[str]) -> None:
    """Raises ValueError for a name that is no variant."""
    for name in names:
        if name not in VARIANTS:
            raise ValueError(f"no variant {name!r}: use some of {', '.join(VARIANTS)}")


def must_move_bytes(
    config: ModelConfig, batch: int, context: int, few_bits: str | None = None
) -> int:
    """What every decode step has to read: all weights and all keys and values, once."""
    stored = stored_in(config, few_bits)
    return stored.read + batch * context * stored.kv_bytes_per_token(config)


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


def gate_of(setup: DecodeSetup) -> Gate:
    """The gate for everything that decodes on this setup."""
    wide = float32_setup(setup, gate.CONTEXT, gate.room_of(setup.batch))
    return Gate(setup, OursEager(setup), OursEager(wide))


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
    if effort.over:
        return Row(*point, name, NOT_RUN, OVER)
    if reason := kind.why_not(setup.backend):
        return Row(*point, name, NOT_RUN, reason)
    variant: Variant | None = None
    try:
        began = time.perf_counter()
        variant = kind.make(setup)
        with skipped_graphs() as reasons:
            variant.prepare()
        setup.backend.synchronize()
        prepare_s = time.perf_counter() - began
        verdict = _verdict(kind.few_bits, setup, judge, variant)
        if kind.gated and not verdict["passed"]:
            return Row(*point, name, GATE_FAILED, verdict["reason"], verdict)
        run = _timed(setup.backend, anchor, variant, effort, prepare_s)
        kernels, launches = count_launches(setup.backend, variant.step)
        variant.rewind()
        ops, steps = variant.ops(), variant.steps_a_call
        row = Row(
            *point,
            name,
            MEASURED,
            gate=verdict,
            steps_a_call=steps,
            kernels_a_call=kernels,
            launches_a_call=launches,
            no_graph=without_graph(kind.mode, launches, reasons),
            ops_a_call=len(ops),
            bytes_to_move=must_move_bytes(
                setup.model.config, setup.batch, setup.context, kind.few_bits
            ),
            bytes_by_op_list=round(sum(op.bytes for op in ops) / steps),
            predicted_us=round(_predicted(kind, setup, ops, steps, spec_for(kind.engine)), 3),
            runs=(run,),
        )
        return with_figures(row, copy_gb_s)
    except Exception as error:  # a variant that breaks must not take the others' figures with it
        return Row(*point, name, NOT_RUN, first_line(error))
    finally:
        if variant is not None:
            with suppress(RuntimeError):  # of a broken device, which `_clean` tells
                variant.release()


def _verdict(
    few_bits: str | None, setup: DecodeSetup, judge: Gate, variant: Variant
) -> dict[str, Any]:
    """What the gate says. Of few bits: a gate of their own, whose truth is these very weights, or
    this cache, in float32, says whether the kernels are right, and quality.py whether the format
    will do."""
    if few_bits is None:
        return judge.judge(variant).as_dict()
    found = gate_of(in_format(setup, few_bits)).judge(variant).as_dict()
    quality = quality_of(few_bits)
    passed, reason = found["passed"] and quality.passed, found["reason"] or quality.reason
    return {**found, "passed": passed, "reason": reason, "quality": asdict(quality)}


def _predicted(
    kind: VariantKind, setup: DecodeSetup, ops: Sequence[OpCost], steps: int, spec: DeviceSpec
) -> float:
    """From the variant's own ops. A compiler makes others of them: those that its engine's file
    says."""
    if kind.engine == COMPILED:
        shape = StepShape.decode(setup.batch, setup.context)
        ops, steps = step_ops(setup.model.config, shape, spec.ops), 1
    return predicted_us(ops, steps, spec, kind.mode, pdl=kind.pdl)


def _timed(
    backend: GraphBackend, anchor: Variant, variant: Variant, effort: Effort, prepare_s: float
) -> Run:
    """Laps in turns with the anchor."""
    anchors, laps = paired_laps(backend, anchor, variant, steps=effort.steps, rounds=effort.rounds)
    return Run(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        prepare_s=round(prepare_s, 3),
        itl_laps_us=tuple(six(lap.event_us) for lap in laps),
        anchor_laps_us=tuple(six(lap.event_us) for lap in anchors),
        wall_laps_us=tuple(six(lap.wall_us) for lap in laps),
        gpu_state={} if backend.emulated else gpu_state(),
    )


def count_launches(
    backend: GraphBackend, call: Callable[[], object]
) -> tuple[int | None, int | None]:
    """(kernels, launches) of one call, by the profiler; (None, None) without a GPU.

    A replayed graph counts as one launch and all of its kernels.
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
    """How many kernels and launches a profiler saw among these events; None for none."""
    events = [event for event in events if not event.is_user_annotation]
    copies = ("Memcpy", "Memset")
    kernels = [
        e for e in events if e.device_type == DeviceType.CUDA and not e.name.startswith(copies)
    ]
    launches = [
        e for e in events if e.device_type != DeviceType.CUDA and e.name.startswith(LAUNCHES)
    ]
    return len(kernels) or None, len(launches) or None


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
