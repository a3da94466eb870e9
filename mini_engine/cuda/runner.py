"""The engine's runner in PyTorch: a scheduled batch in, sampled tokens out.

In: `execute(batch, descriptor)`. Out: one token for each request that reached its last known token.

The same three ways as on the simulated device (`mini_engine/sim/runner.py`), chosen by the same
dispatcher: NONE runs every op from Python, unpadded; FULL replays one graph of body and head;
PIECEWISE replays the pieces of the body with live attention between them, then runs the head.
On a GPU the graphs are real, on a CPU they are emulated: there is no `if` for it here.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from torch import Tensor

from mini_engine.cuda.attention import (
    Attend,
    Attention,
    DecodeAttention,
    HostAttention,
    RaggedAttention,
)
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import GraphRunner, PiecewiseGraphRunner, Progress
from mini_engine.cuda.inputs import StaticInputs, StepInputs
from mini_engine.cuda.model import Model
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.scheduler import ScheduledBatch, SchedulerLimits
from mini_engine.engine.step_arrays import max_blocks


@dataclass(frozen=True)
class NullAttention:
    """Attends to nothing: for warming up pieces, where attention is not part of the graph."""

    def begin(self, inputs: StepInputs) -> Attend:  # noqa: ARG002 (an Attention)
        return lambda q, _keys, _values: q


class TorchRunner:
    """Runs batches of one model. Fits `mini_engine.engine.engine.Runner`."""

    def __init__(
        self,
        model: Model,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        backend: GraphBackend,
        *,
        sample: Sampler = greedy,
    ) -> None:
        """Captures nothing yet: call `capture()`. Until then the dispatcher is made to say NONE."""
        self.model, self.limits, self.dispatcher = model, limits, dispatcher
        dispatcher.graphs_captured = False
        self.backend, self.sample = backend, sample
        rungs = [descriptor.num_tokens for descriptor in dispatcher.descriptors()]
        top = max([limits.max_num_batched_tokens, *rungs])
        self.inputs = StaticInputs(limits, top, backend.device)
        self.pool = backend.graph_pool_handle()
        full = _rungs(dispatcher, CUDAGraphMode.FULL)
        self.full = GraphRunner(backend, self._full_forward, full, self.pool)
        self.piecewise = PiecewiseGraphRunner(
            backend,
            self._piecewise_forward,
            _rungs(dispatcher, CUDAGraphMode.PIECEWISE),
            self.pool,
            NullAttention(),
        )
        self._started = time.perf_counter()

    # -- the engine's protocol -----------------------------------------------------------------

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._started) * 1e6

    def wait_until(self, us: float) -> None:
        time.sleep(max(0.0, us - self.now_us) / 1e6)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """One step. Returns the sampled tokens, in the order of the entries that sample."""
        tokens = self._run(batch, descriptor).tolist()  # waits for the device
        return [tokens[i] for i, entry in enumerate(batch.entries) if entry.samples]

    # -- capture -------------------------------------------------------------------------------

    def capture(self, progress: Progress | None = None) -> CaptureReport:
        """Capture what the dispatcher may choose: PIECEWISE, then FULL, each largest first.

        Rungs that find no memory are dropped, here and in the dispatcher. After an interrupt or an
        error no graph is left and the dispatcher sends every batch to NONE, until the next call.
        """
        report = CaptureReport()
        self.dispatcher.graphs_captured = False
        try:
            self.inputs.clear()
            for mode, runner in (
                (CUDAGraphMode.PIECEWISE, self.piecewise),
                (CUDAGraphMode.FULL, self.full),
            ):
                report.add(captured := runner.capture(progress))
                for descriptor in self.dispatcher.descriptors():
                    if descriptor.mode is mode and descriptor.num_tokens in captured.dropped:
                        self.dispatcher.drop(descriptor)
            self.dispatcher.graphs_captured = True
        except BaseException:
            self.release()
            raise
        return report

    def release(self) -> None:
        """Give all graphs and their memory back: from here on every batch runs eagerly."""
        self.dispatcher.graphs_captured = False
        for runner in (self.piecewise, self.full):
            runner.reset()
        # A capture that CUDA gave up has spoiled the pool: the next one gets another.
        self.piecewise.pool = self.full.pool = self.pool = self.backend.graph_pool_handle()

    # -- one step ------------------------------------------------------------------------------

    def _run(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> Tensor:
        rung, mode = descriptor.num_tokens, descriptor.mode
        if mode is CUDAGraphMode.FULL:
            self.inputs.fill(batch, rung, self._seats(rung))
            return self.full.replay(rung)
        block_size = self.limits.block_size
        attention = HostAttention.of(batch, block_size)
        if mode is CUDAGraphMode.PIECEWISE:
            padded = self.inputs.fill(batch, rung, batch.num_reqs)
            hidden = self.piecewise.run(rung, attention.begin(padded))
            return self.model.head(hidden, padded, self.sample)[1]
        step = self.inputs.fill(batch, batch.num_tokens, batch.num_reqs)
        return self.model.head(self.model.body(step, attention), step, self.sample)[1]

    def _full_forward(self, rung: int) -> Tensor:
        step = self.inputs.view(rung, self._seats(rung))
        hidden = self.model.body(step, self._static_attention())
        return self.model.head(hidden, step, self.sample)[1]

    def _piecewise_forward(self, rung: int, attention: Attention) -> Tensor:
        return self.model.body(self.inputs.view(rung, self._seats(rung)), attention)

    def _static_attention(self) -> Attention:
        """What a full graph holds: decode only, or any mix where one ladder serves both."""
        blocks = max_blocks(self.limits)
        if self.dispatcher.mode.separate_routine():
            return DecodeAttention(blocks, self.limits.block_size)
        return RaggedAttention(blocks, self.limits.block_size)

    def _seats(self, rung: int) -> int:
        return min(rung, self.limits.max_num_seqs)


def _rungs(dispatcher: GraphDispatcher, mode: CUDAGraphMode) -> list[int]:
    return [d.num_tokens for d in dispatcher.descriptors() if d.mode is mode]
