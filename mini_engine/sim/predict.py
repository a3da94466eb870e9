"""What each mode would take on a full-size model: a device that only counts costs.

In:  a shape, a device spec, a mode; or any list of ops, and how they are launched.
Out: a `Prediction`: one decode step taken apart, what capturing costs, and a timeline to draw.

    predict(named_shape("qwen3-0.6b"), load_spec("h200"), "FULL").itl_us
    op_timeline(step_ops(shape, StepShape.decode(1, 512), "fused5"), spec, "full")

The runner, the dispatcher and the kernels are those that write real text; only the arithmetic is
left out. Hugging Face's eager decode (the list `hf56`) has no kernels here, so its ops are launched
as figures, like those that were recorded from a running model (`op_timeline`).
`mini_engine.step.run` gives the length of the same steps to the µs, without a timeline.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from itertools import groupby

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.model.config import ModelConfig
from mini_engine.sim.clocks import Counters
from mini_engine.sim.device import Device
from mini_engine.sim.launch import cost_kernel
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import OpCost, StepShape, step_ops
from mini_engine.step.launch_model import break_even_replays
from mini_engine.step.run import Mode, around

HF_EAGER = "HF eager"
# vLLM 0.33's defaults on most cards (EngineArgs.get_batch_defaults; 1,024 and 8,192 for a server on
# an H100 or H200), and a cache with room to spare.
LIMITS = SchedulerLimits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    num_blocks=4096,
    block_size=16,
    max_model_len=4096,
)


@dataclass(frozen=True)
class Prediction:
    """What one mode takes: for a decode step, and for its capture."""

    mode: str
    timeline: tuple[TraceEvent, ...]  # of the decode step; its time starts at 0
    work: Counters  # of that step
    capture: CaptureReport  # warm-up, capture and instantiation of every rung

    @property
    def itl_us(self) -> float:
        return max(event.end_us for event in self.timeline)

    @property
    def utilisation(self) -> float:
        """The share of the step in which the GPU works, 0 to 1."""
        return self.work.gpu_us / self.itl_us

    def break_even(self, eager: Prediction) -> float:
        """Replays after which capture has paid for itself; infinite if it never does."""
        return break_even_replays(self.capture.time_us, eager.itl_us, self.itl_us)


def predict(
    config: ModelConfig,
    spec: DeviceSpec,
    mode: str,
    *,
    batch: int = 1,
    context: int = 512,
    capture_sizes: Sequence[int] | None = None,
) -> Prediction:
    """What `mode` takes: NONE, PIECEWISE, FULL, FULL_AND_PIECEWISE, … or `HF eager`.

    The step is a decode of `batch` requests with `context` tokens each, this step's included.
    """
    if not 1 <= batch <= LIMITS.max_num_seqs:
        raise ValueError(f"batch {batch}: expected 1 to {LIMITS.max_num_seqs} requests")
    if not 2 <= context <= LIMITS.max_model_len:
        raise ValueError(
            f"context {context}: expected 2 to {LIMITS.max_model_len} tokens, this step's included"
        )
    device, capture = Device(spec, compute=False), CaptureReport()
    step: Callable[[], object]
    if mode == HF_EAGER:
        ops = step_ops(config, StepShape.decode(batch, context), "hf56")
        step = step_of_figures(device, ops, "eager", batch)
    else:
        seqs, budget = LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens
        sizes = default_capture_sizes(seqs, budget, capture_sizes=capture_sizes, mode=mode)
        dispatcher = GraphDispatcher(mode, sizes, seqs)
        runner = SimRunner(device, config, None, LIMITS, dispatcher)
        capture = runner.capture()
        descriptor = dispatcher.dispatch(batch, batch, 1)
        step = partial(runner.execute, _decodes(batch, context), descriptor)
    before = device.counters.copy()
    with device.recorded() as events:
        step()
    return Prediction(mode, tuple(events), device.counters.since(before), capture)


def _decodes(batch: int, context: int) -> ScheduledBatch:
    """Made by hand: where nothing is computed, there is nothing to prefill."""
    blocks = (1,) * -(-context // LIMITS.block_size)
    states = (RequestState(Request(str(i), range(context), 1)) for i in range(batch))
    return ScheduledBatch(
        tuple(
            ScheduledRequest(state, context - 1, 1, blocks, is_prefill=False, samples=True)
            for state in states
        )
    )


# ---------------------------------------------------------------- steps of mere figures


def op_timeline(
    ops: Sequence[OpCost], spec: DeviceSpec, mode: Mode, num_reqs: int = 1
) -> tuple[TraceEvent, ...]:
    """A step of these ops, figures of kernels that compute nothing; time 0 is its start."""
    device = Device(spec, compute=False)
    step = step_of_figures(device, ops, mode, num_reqs)
    with device.recorded() as events:
        step()
    return tuple(events)


def step_of_figures(
    device: Device, ops: Sequence[OpCost], mode: Mode, num_reqs: int
) -> Callable[[], object]:
    """A step that is ready to run: engine, copy of the inputs, `ops`, way back."""

    def launch(part: Sequence[OpCost]) -> None:
        for op in part:
            device.launch(cost_kernel(op.name, op.bytes, op.flops, op.kind))

    parts = [(mode == "eager", list(ops))]
    if mode == "piecewise":
        grouped = groupby(ops, key=lambda op: op.splitting)
        parts = [(splitting, list(part)) for splitting, part in grouped]
    turns: list[Callable[[], None]] = []  # what the CPU does: live launches, replays of graphs
    for is_live, part in parts:
        if is_live:
            turns.append(partial(launch, part))
            continue
        with device.capture() as graph:  # before the step, which does not wait for it
            launch(part)
        turns.append(graph.replay)

    def step() -> None:
        before_us, beside_us = around(device.spec, num_reqs)
        device.host_work("schedule and prepare", before_us)
        device.copy_batch([])
        with device.live() if mode == "piecewise" else nullcontext():
            for turn in turns:
                turn()
        device.host_work("schedule the next step", beside_us)
        device.synchronize()

    return step
