"""ITL against batch, launched in three ways: where launching sets the pace, and what graphs cost.

Graphs run at the rung (`run.padded_step`), and above the ladder every step is eager."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import ModelConfig
from mini_engine.step import run
from mini_engine.step.capacity import floor_ms
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape
from mini_engine.step.run import MODES, Mode, StepTime, around
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import Stored, stored_as


@dataclass(frozen=True)
class ItlPoint:
    batch: int
    rung: int | None  # None: above the ladder, where piecewise and full are eager too
    eager: StepTime
    piecewise: StepTime
    full: StepTime
    floor_us: float  # reading all weights and all keys once, as fast as this card reads

    @property
    def speedup(self) -> float:
        return self.eager.itl_us / self.full.itl_us

    @property
    def saved(self) -> float:
        """The share of eager's ITL that one full graph saves."""
        return 1 - self.full.itl_us / self.eager.itl_us


@dataclass(frozen=True)
class ItlCurve:
    shape: str
    spec: DeviceSpec
    context: int
    ladder: CaptureLadder
    crossover: int  # the smallest batch at which eager is not launch-bound; may be off the curve
    points: tuple[ItlPoint, ...]  # batch rising

    def point(self, batch: int) -> ItlPoint:
        return next(point for point in self.points if point.batch == batch)

    def finding(self) -> str:
        first, last = self.points[0], self.points[-1]
        top = [first, *(p for p in self.points if p.rung)][-1]
        share, of_top = (f"{p.saved:.0%}" if abs(p.saved) >= 0.1 else f"{p.saved:.1%}"
                         for p in (first, top))  # fmt: skip
        saves = f"one full graph saves {share} of ITL at batch {first.batch}"
        saves += f", {of_top} at {top.batch}" if top.batch > first.batch else ""
        where = f"launch-bound below a batch of {self.crossover}"
        if self.crossover > last.batch:
            where = "launch-bound at every batch here"
        if self.crossover <= first.batch:
            where = "never launch-bound here"
        return f"Eager is {where}: {saves}"


def itl_curve(
    config: ModelConfig, spec: DeviceSpec, ladder: CaptureLadder, *, context: int, max_batch: int,
    stored: Stored | None = None,
) -> ItlCurve:  # fmt: skip
    """From batch 1 to `max_batch`: every batch up to 512, some of those above, and both sides of
    each corner. Every request has `context` tokens. ValueError below 1."""
    costs = StepModel(config, spec, stored)
    crossover = crossover_batch(config, spec, context, stored)
    corners = {corner + side for corner in (*ladder, crossover) for side in (0, 1)}
    corners |= {2**k for k in range(max_batch.bit_length())}
    some = {*range(1, max_batch + 1, 1 + max_batch // 513), max_batch}
    batches = sorted(some | {batch for batch in corners if batch <= max_batch})
    rungs = [ladder.rung(batch) for batch in batches]
    shapes: dict[Mode, list[StepShape]] = {mode: [] for mode in MODES}
    for batch, rung in zip(batches, rungs, strict=True):
        keys, rows = batch * context, rung or batch
        shapes["eager"].append(StepShape.decode(batch, context))
        shapes["piecewise"].append(StepShape(rows, batch, keys, keys))
        shapes["full"].append(StepShape(rows, rows, keys, keys, batch))
    steps = (costs.steps(mode, of) for mode, of in shapes.items())
    points = [
        ItlPoint(batch, rung, eager, piecewise if rung else eager, full if rung else eager,
                 step_floor_us(config, spec, batch, context, stored))
        for batch, rung, eager, piecewise, full in zip(batches, rungs, *steps, strict=True)
    ]  # fmt: skip
    return ItlCurve(config.name, spec, context, ladder, crossover, tuple(points))


def crossover_batch(
    config: ModelConfig, spec: DeviceSpec, context: int, stored: Stored | None = None
) -> int:
    """The smallest decode batch at which eager launching is no longer launch-bound. Below it a
    larger batch costs no time; above it a graph saves only the wider gaps."""
    costs = StepModel(config, spec, stored)

    def hidden(batch: int) -> bool:
        """Does the GPU, gaps included, run the kernels for longer than the CPU issues them?"""
        [step] = costs.steps("eager", [StepShape.decode(batch, context)])
        gpu_us = step.gpu_busy_us - spec.kernel_floor_us  # without the copy of the inputs
        issue_us = step.cpu_us - spec.copy_us - sum(around(spec, batch))
        return bool(gpu_us + step.kernels * spec.stream_gap_us >= issue_us)

    top = 1
    while not hidden(top):
        top *= 2
    return 1 + bisect_left(range(1, top), True, key=hidden)


def step_floor_us(
    config: ModelConfig, spec: DeviceSpec, batch: int, context: int, stored: Stored | None = None
) -> float:
    """No decode step takes less: all weights (of experts, those that are touched) and all keys are
    read once, as fast as the fastest kind of kernel reads."""
    stored = stored or stored_as(config)
    must_read = stored.must_read(batch * context, config.touched_share(batch))
    fastest_gb_s = max(spec.copy_bandwidth_gb_s, spec.product_gb_s, spec.attention_gb_s)
    return 1e3 * floor_ms(must_read, fastest_gb_s)


@dataclass(frozen=True)
class CaptureCost:
    warmup_us: float
    capture_us: float
    instantiate_us: float
    graphs: int
    nodes: int
    node_bytes: int  # held by the driver; activations come on top (`capacity`)

    @property
    def total_us(self) -> float:
        return self.warmup_us + self.capture_us + self.instantiate_us


def capture_cost(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> CaptureCost:
    """Of "piecewise" or "full": warm up once, as vLLM 0.33 does, record and instantiate. Recording
    an op costs as much as issuing it, and a node. What stands before the first graph and after the
    last belongs to no capture."""
    ops = [op for op in ops if op.by != "torch"]
    while run.is_live(mode, ops[-1].splitting, ops[-1].by):
        ops = ops[:-1]
    live = [run.is_live(mode, op.splitting, op.by) for op in ops]
    graphs = [nodes for nodes, graph in run.pieces(live) if graph]
    warm_us = run.run_of([run.input_copy(spec), *run.launched(ops, spec, "eager")], spec).both
    return CaptureCost(
        warmup_us=warm_us + spec.sync_us,
        capture_us=sum(graphs) * (spec.cpu_op_us + spec.capture_node_us),
        instantiate_us=sum(graphs) * spec.instantiate_node_us, graphs=len(graphs),
        nodes=sum(graphs), node_bytes=sum(graphs) * spec.graph_node_bytes,
    )  # fmt: skip
