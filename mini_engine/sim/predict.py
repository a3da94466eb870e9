"""What each mode would take on a full-size model: a device that only counts costs.

In: a shape, a device spec, a mode. Out: a `Prediction`: one decode step taken apart, a small
service's inter-token latencies, what capturing costs, and a timeline to draw.

The engine, scheduler, runner and kernels are those that write real text; only the arithmetic is
left out. The exception is Hugging Face eager decode: its op list (`hf56`) has no kernels here, so
its ops are launched as figures (`OpListRunner`).
"""

from __future__ import annotations

import gc
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.engine import Engine, Runner
from mini_engine.model.config import ModelConfig
from mini_engine.sim.device import Device
from mini_engine.sim.op_timeline import launch_ops
from mini_engine.sim.runner import SimRunner
from mini_engine.sim.trace import TraceEvent
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import break_even_replays
from mini_engine.step.run import around

HF_EAGER = "HF eager"
# vLLM 0.33's defaults on most cards (EngineArgs.get_batch_defaults; 1,024 and 8,192 for a server on
# an H100 or H200), and a cache with room to spare for the service.
LIMITS = SchedulerLimits(
    max_num_seqs=256,
    max_num_batched_tokens=2048,
    num_blocks=4096,
    block_size=16,
    max_model_len=4096,
)


@dataclass(frozen=True)
class Service:
    """A workload: requests that arrive one after another and decode side by side."""

    requests: int = 8
    prompt_tokens: int = 256
    new_tokens: int = 64
    every_us: float = 20_000

    def make(self, from_us: float) -> list[Request]:
        """The requests, the first of which arrives at `from_us`."""
        prompt = range(self.prompt_tokens)
        return [
            Request(str(i), prompt, self.new_tokens, arrival_us=from_us + i * self.every_us)
            for i in range(self.requests)
        ]

    def __str__(self) -> str:
        return (
            f"{self.requests} requests of {self.prompt_tokens} tokens, one every "
            f"{self.every_us / 1000:g} ms, {self.new_tokens} new tokens each"
        )


@dataclass(frozen=True)
class Prediction:
    """What one mode takes: for a decode step, for the service, for its capture."""

    mode: str
    kernels: int
    launches: int
    cpu_us: float  # CPU at work
    gpu_us: float  # GPU at work
    itl_us: float  # of that step
    utilisation: float

    itl_p50_us: float
    itl_p99_us: float

    graphs: int
    capture_us: float  # warm-up, capture and instantiation of every rung
    graph_bytes: int
    timeline: tuple[TraceEvent, ...]  # of the decode step; its time starts at 0

    def break_even(self, eager: Prediction) -> float:
        """Replays after which capture has paid for itself; infinite if it never does."""
        return break_even_replays(self.capture_us, eager.itl_us, self.itl_us)


def predict(
    config: ModelConfig,
    spec: DeviceSpec,
    mode: str,
    *,
    batch: int = 1,
    context: int = 512,
    service: Service | None = None,
    capture_sizes: Sequence[int] | None = None,
) -> Prediction:
    """What `mode` takes: NONE, PIECEWISE, FULL, FULL_AND_PIECEWISE, … or `HF eager`."""
    if not 1 <= batch <= LIMITS.max_num_seqs:
        raise ValueError(f"batch {batch}: expected 1 to {LIMITS.max_num_seqs} requests")
    if not 2 <= context <= LIMITS.max_model_len:
        raise ValueError(
            f"context {context}: expected 2 to {LIMITS.max_model_len} tokens, this step's included"
        )
    gc.collect()  # the devices of other predictions, whose blocks and segments know one another
    device = Device(spec, compute=False)
    runner, dispatcher, report = _runner(device, config, mode, capture_sizes)
    timeline = _one_step(device, runner, dispatcher, batch, context)
    requests = (service or Service()).make(runner.now_us)
    served = Engine(runner, LIMITS, dispatcher).run(requests)
    itls = [itl for completion in served for itl in completion.itls_us]
    itl_us = max(event.end_us for event in timeline)
    busy = {lane: _busy(timeline, lane) for lane in ("CPU", "GPU")}
    return Prediction(
        mode=mode,
        kernels=sum(e.category in ("kernel", "node") for e in timeline),
        launches=sum(
            e.category in ("launch", "graph", "copy") and e.lane == "CPU" for e in timeline
        ),
        cpu_us=busy["CPU"],
        gpu_us=busy["GPU"],
        itl_us=itl_us,
        utilisation=busy["GPU"] / itl_us,
        itl_p50_us=float(np.percentile(itls, 50, method="inverted_cdf")),
        itl_p99_us=float(np.percentile(itls, 99, method="inverted_cdf")),
        graphs=report.graphs,
        capture_us=report.time_us,
        graph_bytes=report.bytes,
        timeline=tuple(timeline),
    )


def _runner(
    device: Device, config: ModelConfig, mode: str, capture_sizes: Sequence[int] | None
) -> tuple[Runner, GraphDispatcher, CaptureReport]:
    if mode == HF_EAGER:
        none = GraphDispatcher("NONE", [], LIMITS.max_num_seqs)
        return OpListRunner(device, config, "hf56"), none, CaptureReport()
    sizes = default_capture_sizes(
        LIMITS.max_num_seqs, LIMITS.max_num_batched_tokens, capture_sizes=capture_sizes, mode=mode
    )
    dispatcher = GraphDispatcher(mode, sizes, LIMITS.max_num_seqs)
    runner = SimRunner(device, config, None, LIMITS, dispatcher)
    return runner, dispatcher, runner.capture()


def _one_step(
    device: Device, runner: Runner, dispatcher: GraphDispatcher, batch: int, context: int
) -> list[TraceEvent]:
    """A decode step of `batch` requests with `context` tokens each, this step's included.

    The batch is made by hand: where nothing is computed, there is nothing to prefill.
    """
    blocks = (1,) * -(-context // LIMITS.block_size)
    decodes = tuple(
        ScheduledRequest(
            RequestState(Request(str(i), range(context), 1)), context - 1, 1, blocks,
            is_prefill=False, samples=True,
        )
        for i in range(batch)
    )  # fmt: skip
    with device.clocks.recorded() as events:
        runner.execute(ScheduledBatch(decodes), dispatcher.dispatch(batch, batch, 1))
    return events


def _busy(timeline: Sequence[TraceEvent], lane: str) -> float:
    return sum(e.duration_us for e in timeline if e.lane == lane and e.category != "wait")


class OpListRunner:
    """Launches an op list as figures, eagerly. Fits `mini_engine.engine.engine.Runner`."""

    def __init__(self, device: Device, config: ModelConfig, style: str) -> None:
        self.device, self.config, self.style = device, config, style

    @property
    def now_us(self) -> float:
        return self.device.cpu_us

    def wait_until(self, us: float) -> None:
        self.device.idle_until(us)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:  # noqa: ARG002
        """Each op is a launch of its own, whatever the descriptor: there are no graphs."""
        device = self.device
        before_us, beside_us = around(device.spec, batch.num_reqs)
        device.host_work("schedule and prepare", before_us)
        device.copy_batch([])
        shape = StepShape.mixed(batch.query_lens, batch.context_lens)
        launch_ops(device, step_ops(self.config, shape, self.style))
        device.host_work("schedule the next step", beside_us)
        device.synchronize()
        return [0] * sum(entry.samples for entry in batch.entries)
