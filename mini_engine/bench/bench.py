"""The benchmark: how long a decode step takes, variant by variant, and why to believe it.

For each variant: can it run here? prepare; the gate; laps in turns with the anchor, AB BA; what the
simulator predicts. Only dependent decode steps are timed: the sampled token is fed back on the
device, and no lap contains a prefill, a copy from the host or a read-back. The prediction leaves
those out, too.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from mini_engine.bench import decode_setup as setups
from mini_engine.bench import gate
from mini_engine.bench.decode_setup import DecodeSetup, Variant
from mini_engine.bench.evidence import first_line, gpu_state
from mini_engine.bench.gate import Gate
from mini_engine.bench.intervals import median_interval, paired_ratio
from mini_engine.bench.rows import GATE_FAILED, MEASURED, NOT_RUN, Point, Row
from mini_engine.bench.timing import paired_laps
from mini_engine.bench.variants import ANCHOR, COMPILED, VARIANTS
from mini_engine.cuda.graphs.backend import GraphBackend, measured_dtype
from mini_engine.cuda.weights import Weights, load_weights, no_room, random_weights
from mini_engine.model.config import SHAPES, ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost
from mini_engine.step.run import Mode, step_time, with_pdl
from mini_engine.step.storage import stored_as


@dataclass(frozen=True)
class Bench:
    """How to measure, and on what."""

    backend: GraphBackend
    spec_for: Callable[[str], DeviceSpec]  # by an engine's name, on the card and host at hand
    copy_gb_s: float
    rounds: int  # laps of each variant; even
    steps: int  # decode steps a lap
    gate_steps: int = gate.STEPS[1]  # at most so many are compared with float32 on each path

    def missing(
        self, configs: Mapping[str, ModelConfig], places: Sequence[tuple[int, int]],
        names: Sequence[str], have: Mapping[tuple[Point, str], Row],
    ) -> Iterator[Row]:  # fmt: skip
        """The rows of these variants that nobody has yet. `configs`: by a shape's name, or by the
        folder of a checkpoint. `places`: batch and context."""
        backend, dtype = self.backend, measured_dtype(self.backend)
        for word, config in configs.items():
            points = [Point(config.name, *place) for place in places]
            missing = {p: [name for name in names if (p, name) not in have] for p in points}
            if not any(missing.values()):
                continue
            if reason := no_room(config, backend, "bf16", "fp32"):
                yield from (Row(*p, name, NOT_RUN, reason) for p in points for name in missing[p])
                continue
            if word not in (*SHAPES, "tiny") and Path(word).is_dir():
                ModelConfig.from_folder(word)  # refuses what can be predicted and not loaded
                weights = load_weights(config, word, backend.device, dtype)
            else:
                weights = random_weights(config, backend.device, dtype, seed=0)
            for point in points:
                if missing[point]:
                    yield from self.rows(weights, point, missing[point])
            del weights  # before the next shape's are made

    @torch.no_grad()
    def rows(self, weights: Weights, point: Point, names: Sequence[str]) -> Iterator[Row]:
        """A row for each variant as soon as it is known: measured, or why it was not. ValueError
        after a variant that has left this process no device."""
        try:
            room = max(point.context + self.steps + setups.BLOCK_SIZE, gate.room_of(point.batch))
            setup = setups.build_setup(self.backend, weights, point.batch, point.context, room)
            judge, anchor = Gate(setup, self.gate_steps), _anchor(setup)
        except (torch.OutOfMemoryError, ValueError) as error:
            yield from (Row(*point, name, NOT_RUN, first_line(error)) for name in names)
            return
        for name in names:
            # its caller has the row in a file before a broken device ends this process
            yield self._row(setup, judge, anchor, Row(*point, name, NOT_RUN))
            _clean(self.backend, name)
            if VARIANTS[name].engine == COMPILED:
                # torch.compile with CUDA graphs clears cuBLAS's workspaces, which the anchor's
                # graph may hold (torch/_inductor/cudagraph_trees.py): what it replays then is not
                # its own.
                anchor.release()
                anchor = _anchor(setup)
        anchor.release()

    def _row(self, setup: DecodeSetup, judge: Gate, anchor: Variant, row: Row) -> Row:
        kind = VARIANTS[row.variant]
        if reason := kind.why_not(self.backend):
            return replace(row, reason=reason)
        variant: Variant | None = None
        try:
            began = time.perf_counter()
            skipped = skipped_graphs()
            variant = kind.make(setup)
            variant.prepare()
            self.backend.synchronize()
            prepare_s, skipped = time.perf_counter() - began, skipped_graphs() - skipped
            verdict = judge.judge(variant)
            row = replace(row, gate=verdict.as_dict())
            if kind.gated and not verdict.passed:
                return replace(row, status=GATE_FAILED, reason=verdict.reason)
            laps = paired_laps(self.backend, anchor, variant, steps=self.steps, rounds=self.rounds)
            theirs, ours = (tuple(lap.event_us for lap in one) for one in laps)
            variant.rewind()
            itl = median_interval(ours)
            spec = self.spec_for(kind.engine)
            share = setup.model.config.touched_share(setup.batch)
            moved = stored_as(setup.model.config).must_read(setup.batch * setup.context, share)
            gb_s = moved / itl.median / 1e3
            predicted = predicted_us(
                variant.ops(spec.ops), variant.steps_a_call, spec, kind.mode, pdl=kind.pdl
            )
            return replace(
                row, status=MEASURED, date=datetime.now(UTC).isoformat(timespec="seconds"),
                prepare_s=prepare_s, steps_a_call=variant.steps_a_call,
                no_graph=f"graphs left out: {skipped}" if skipped and kind.mode == "full" else "",
                bytes_to_move=moved, predicted_us=predicted, itl_laps_us=ours,
                anchor_laps_us=theirs, itl=itl,
                wall=median_interval([lap.wall_us for lap in laps[1]]),
                times_the_anchor=paired_ratio(theirs, ours), achieved_gb_s=gb_s,
                percent_of_copy=100 * gb_s / self.copy_gb_s,
                gpu_state={} if self.backend.emulated else gpu_state(),
            )  # fmt: skip
        except Exception as error:  # one broken variant must not cost the others' rows
            return replace(row, reason=first_line(error))
        finally:
            if variant is not None:
                with suppress(RuntimeError):  # of a broken device, which `_clean` tells
                    variant.release()


def predicted_us(
    ops: Sequence[OpCost], steps: int, spec: DeviceSpec, mode: Mode, *, pdl: bool = False
) -> float:
    """The simulator's µs for a decode step; `ops` are `steps` of them. With `pdl` nodes overlap."""
    if pdl:
        spec = with_pdl(spec)
    fed_on_device = replace(
        spec, host_step_us=0.0, ahead_us=0.0, request_us=0.0, copy_us=0.0, sync_us=0.0
    )
    return step_time(ops, fed_on_device, mode).itl_us / steps


def _anchor(setup: DecodeSetup) -> Variant:
    variant = VARIANTS[ANCHOR].make(setup)
    variant.prepare()
    return variant


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


def skipped_graphs() -> int:
    """CUDA graphs that torch.compile has left out in this process, since it thought them unsafe: a
    step without them is right, and no baseline for graphs. TORCH_LOGS=perf_hints tells why."""
    from torch._dynamo.utils import counters

    return int(counters["inductor"]["cudagraph_skips"])
