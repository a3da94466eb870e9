"""The data behind the figure of the course: ITL against batch, launched in three ways.

In:  a model, a device, an op list, a context, a capture ladder.
Out: for each decode batch the rung it runs at, the step launched each way, and the floor.

    curve = crossover_curve(named_shape("qwen3-0.6b"), load_spec("h200"), ladder,
                            style="fused9", context=1024, max_batch=256)
    curve.crossover                        # 10: from here on eager is not launch-bound
    curve.points[0].speedup                # of one full graph, at batch 1

Graphs run at the rung: a full graph pads every row, logits too; a piecewise one only what is
inside the graphs. Padding rows have no keys to read. Above the ladder every step is eager.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import ModelConfig
from mini_engine.predict.capacity import floor_ms, kv_bytes_per_token, read_bytes
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.oplists import StepShape, step_ops
from mini_engine.predict.payoff import crossover_batch
from mini_engine.predict.step_cost import StepTime, step_time

STORED_AS = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}  # names of `capacity`


@dataclass(frozen=True)
class CrossoverPoint:
    """One decode batch."""

    batch: int
    rung: int | None  # None: above the ladder, where piecewise and full are eager too
    eager: StepTime
    piecewise: StepTime
    full: StepTime
    floor_us: float  # reading all weights and all keys once, at the bandwidth of a copy

    @property
    def speedup(self) -> float:
        """How many times as long eager takes as one full graph."""
        return self.eager.itl_us / self.full.itl_us

    @property
    def saved(self) -> float:
        """The share of eager's ITL that one full graph saves."""
        return 1 - self.full.itl_us / self.eager.itl_us


@dataclass(frozen=True)
class CrossoverCurve:
    """ITL against batch, with what it was computed for."""

    shape: str
    spec: str
    style: str
    context: int
    host_step_us: float
    ladder: CaptureLadder
    crossover: int  # the smallest batch at which eager is not launch-bound; may be off the curve
    points: tuple[CrossoverPoint, ...]  # batch rising

    def point(self, batch: int) -> CrossoverPoint:
        """The point of one batch. Raises ValueError where the curve has none."""
        for point in self.points:
            if point.batch == batch:
                return point
        raise ValueError(f"no point at batch {batch}: the curve ends at {self.points[-1].batch}")

    def finding(self) -> str:
        """One sentence: where eager is launch-bound, and what one full graph saves of ITL."""
        first, last = self.points[0], self.points[-1]
        top = max((p for p in self.points if p.rung), key=lambda p: p.batch, default=first)
        saves = f"one full graph saves {_percent(first.saved)} of ITL at batch {first.batch}"
        if top.batch > first.batch:
            saves += f", {_percent(top.saved)} at {top.batch}"
        if self.crossover <= first.batch:
            return f"Eager is never launch-bound here: {saves}"
        if self.crossover > last.batch:
            return f"Eager is launch-bound at every batch here: {saves}"
        return f"Eager is launch-bound below a batch of {self.crossover}: {saves}"


def crossover_curve(
    config: ModelConfig,
    spec: DeviceSpec,
    ladder: CaptureLadder,
    *,
    style: str,
    context: int,
    max_batch: int,
) -> CrossoverCurve:
    """The curve from batch 1 to `max_batch`; every request has `context` tokens.

    Raises ValueError for a context or a batch below 1, and for an unknown style.
    """
    if max_batch < 1:
        raise ValueError(f"max_batch is {max_batch}, expected 1 or more")
    crossover = crossover_batch(config, spec, style, context)
    batches = _batches(max_batch, [*ladder, crossover])
    return CrossoverCurve(
        shape=config.name,
        spec=spec.name,
        style=style,
        context=context,
        host_step_us=spec.host_step_us,
        ladder=ladder,
        crossover=crossover,
        points=tuple(_point(config, spec, ladder, style, context, batch) for batch in batches),
    )


def step_floor_us(config: ModelConfig, spec: DeviceSpec, batch: int, context: int) -> float:
    """No decode step can take less: all weights and all keys, read once, as fast as a copy."""
    stored = STORED_AS[config.dtype]
    kv_bytes = batch * context * kv_bytes_per_token(config, stored)
    return 1e3 * floor_ms(read_bytes(config, stored) + kv_bytes, spec.copy_bandwidth_gb_s)


# ---------------------------------------------------------------- parts


def _point(
    config: ModelConfig,
    spec: DeviceSpec,
    ladder: CaptureLadder,
    style: str,
    context: int,
    batch: int,
) -> CrossoverPoint:
    shape, keys, rung = StepShape.decode(batch, context), batch * context, ladder.rung(batch)
    eager = piecewise = full = step_time(step_ops(config, shape, style), spec, "eager")
    if rung is not None:
        pieces = step_ops(config, StepShape(rung, batch, keys, keys), style)
        whole = step_ops(config, StepShape(rung, rung, keys, keys), style)
        piecewise = step_time(pieces, spec, "piecewise")
        full = step_time(whole, spec, "full")
    floor_us = step_floor_us(config, spec, batch, context)
    return CrossoverPoint(batch, rung, eager, piecewise, full, floor_us)


def _batches(max_batch: int, corners: Iterable[int]) -> list[int]:
    """Every batch up to 512, some of those above, and both sides of each corner."""
    sides = {side for corner in corners for side in (corner, corner + 1) if side <= max_batch}
    doublings = {2**k for k in range(max_batch.bit_length())}
    return sorted({*range(1, max_batch + 1, 1 + max_batch // 513), max_batch, *sides, *doublings})


def _percent(share: float) -> str:
    return f"{share:.0%}" if abs(share) >= 0.1 else f"{share:.1%}"
