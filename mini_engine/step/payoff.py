"""Does a graph pay: what capturing costs, after how many replays it pays, up to which batch.

In:  the ops of a step (`oplists`) and a `DeviceSpec`; for batches, a model and a context.
Out: the cost of one capture size; the break-even in replays; the crossover, that is the batch at
     which eager stops being launch-bound; the batch from which a graph is hardly worth having.

    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 1024), "fused9")
    break_even(ops, load_spec("h200"), "full")       # replays
    crossover_batch(named_shape("qwen3-0.6b"), load_spec("h200"), "fused9", 1024)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mini_engine.model.config import ModelConfig
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.launch_model import break_even_replays, crossover
from mini_engine.step.oplists import OpCost, StepShape, step_ops
from mini_engine.step.step_cost import Mode, input_copy, launched, rates, run_of, step_time
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import Stored


@dataclass(frozen=True)
class CaptureCost:
    """What it costs to have the graphs of one capture size."""

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
    """Warm up, record and instantiate. Recording an op costs as much as issuing it, and a node.

    There is one warm-up run, as in vLLM 0.33, without the engine around it. In pieces, the ops
    after the last piece (the head) belong to no capture. Eager captures nothing: all zeros.
    """
    if mode == "eager":
        return CaptureCost(0.0, 0.0, 0.0, 0, 0, 0)
    if mode == "piecewise":
        while ops[-1].splitting:
            ops = ops[:-1]
    works = launched(ops, spec, mode)
    live = sum(op.splitting for op in ops) if mode == "piecewise" else 0
    nodes = len(ops) - live
    warm_us = run_of([input_copy(spec), *launched(ops, spec, "eager")], spec).both
    return CaptureCost(
        warmup_us=warm_us + spec.sync_us,
        capture_us=nodes * (spec.cpu_op_us + spec.capture_node_us),
        instantiate_us=nodes * spec.instantiate_node_us,
        graphs=len(works) - live,
        nodes=nodes,
        node_bytes=nodes * spec.graph_node_bytes,
    )


def break_even(ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode) -> float:
    """The number of replays after which the graphs have paid for themselves, or infinity."""
    eager_us, graph_us = (step_time(ops, spec, m).itl_us for m in ("eager", mode))
    return break_even_replays(capture_cost(ops, spec, mode).total_us, eager_us, graph_us)


# ---------------------------------------------------------------- where graphs stop mattering


def crossover_batch(
    config: ModelConfig, spec: DeviceSpec, style: str, context: int, stored: Stored | None = None
) -> int:
    """The smallest decode batch at which eager launching is no longer launch-bound.

    Below it a larger batch costs no time; above it a graph saves only the wider gaps. Every request
    has `context` tokens.
    """
    costs = StepModel(config, spec, style, stored)
    return _smallest(lambda batch: not costs.launch_bound(StepShape.decode(batch, context)))


def crossover_closed_form(config: ModelConfig, spec: DeviceSpec, style: str, context: int) -> int:
    """The same from two numbers: the bytes of a batch of one, and those that each request adds.

    Equal to `crossover_batch` where no op is bound by arithmetic, and above it otherwise.
    """
    one, two = (step_ops(config, StepShape.decode(b, context), style) for b in (1, 2))
    one_us, two_us = (
        sum(op.bytes / (rates(op, spec)[0] * 1e3) for op in ops) for ops in (one, two)
    )
    return crossover(len(one), 2 * one_us - two_us, two_us - one_us, spec)


def gain_below(
    config: ModelConfig, spec: DeviceSpec, style: str, context: int, fraction: float
) -> int:
    """The smallest decode batch at which a full graph saves less than `fraction` of eager's ITL.

    Raises ValueError unless 0 < fraction < 1.
    """
    if not 0 < fraction < 1:
        raise ValueError(f"fraction is {fraction}, expected more than 0 and less than 1")
    costs = StepModel(config, spec, style)

    def saved(batch: int) -> float:
        shape = StepShape.decode(batch, context)
        return 1 - costs.itl_us("full", shape) / costs.itl_us("eager", shape)

    return _smallest(lambda batch: saved(batch) < fraction)


def _smallest(holds: Callable[[int], bool]) -> int:
    """The smallest batch for which `holds`, given that it holds for every larger one."""
    top = 1
    while not holds(top):
        top *= 2
    bottom = top // 2  # does not hold here, or is 0
    while top - bottom > 1:
        middle = (bottom + top) // 2
        bottom, top = (bottom, middle) if holds(middle) else (middle, top)
    return top
