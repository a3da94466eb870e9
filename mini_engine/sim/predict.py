"""What each mode would take on a full-size model: a step played on the two clocks of a device.

    predict(named_shape("qwen3-0.6b"), load_spec("h200"), "FULL").itl_us
    timeline, _ = play(step_ops(shape, StepShape.decode(1, 512), "fused5"), spec, "full")

`mini_engine.step.run` gives the length of the same steps by a formula."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.model.config import ModelConfig
from mini_engine.sim.clocks import Clocks, Counters
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.launch_model import graph_launch_us
from mini_engine.step.run import Mode, around, is_live, issue_live_us, kernel_us, padded_step

HF_EAGER = "HF eager"


@dataclass(frozen=True)
class Prediction:
    timeline: tuple[TraceEvent, ...]  # of the decode step; its time starts at 0
    work: Counters  # of that step

    @property
    def itl_us(self) -> float:
        return max(event.end_us for event in self.timeline)

    @property
    def utilisation(self) -> float:
        return self.work.gpu_us / self.itl_us


def predict(
    config: ModelConfig, spec: DeviceSpec, mode: str, *, batch: int = 1, context: int = 512,
    capture_sizes: Sequence[int] | None = None,
) -> Prediction:  # fmt: skip
    """What a decode of `batch` requests with `context` tokens each, this step's included, takes in
    a mode: NONE, PIECEWISE, FULL, FULL_AND_PIECEWISE, … or `HF eager`."""
    (seqs, budget), shape = spec.batch_defaults, StepShape.decode(batch, context)
    if batch > seqs:
        raise ValueError(f"batch {batch}: expected 1 to {seqs} requests")
    launched: Mode = "eager"
    if mode == HF_EAGER:
        ops = step_ops(config, shape, "hf56")
    else:
        sizes = default_capture_sizes(seqs, budget, capture_sizes=capture_sizes, mode=mode)
        descriptor = GraphDispatcher(mode, sizes, seqs).dispatch(batch, batch, 1)
        launched, shape = padded_step(descriptor, batch, batch * context, batch * context)
        ops = step_ops(config, shape, spec.ops)
    return Prediction(*play(ops, spec, launched, batch))


def play(
    ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1
) -> tuple[tuple[TraceEvent, ...], Counters]:
    """A step of these ops on the device's clocks: engine, copy of the inputs, `ops`, way back. Its
    timeline begins at 0."""
    clocks = Clocks(spec, record=True)
    before_us, beside_us = around(spec, num_reqs)
    clocks.host_work("schedule and prepare", before_us)
    clocks.host_copy()
    for live, part in groupby(ops, key=lambda op: is_live(mode, op.splitting, op.by)):
        works = [(op, (op.name, kernel_us(op, spec))) for op in part]
        if live:
            for op, work in works:
                clocks.issue(op.name, issue_live_us(spec, mode, op.by), "kernel", [work])
        else:
            nodes = [work for _, work in works]
            launch_us = graph_launch_us(len(nodes), spec)
            clocks.issue(f"launch graph ({len(nodes)} nodes)", launch_us, "node", nodes)
    clocks.host_work("schedule the next step", beside_us)
    clocks.drain()
    return tuple(clocks.timeline), clocks.counters
