"""The engine's runner in PyTorch: a scheduled batch in, sampled tokens out.

In: `execute(batch, descriptor)`. Out: one token for each request that reached its last known token.

The dispatcher chooses one of three ways to run a batch, as on the simulated device
(`mini_engine/sim/runner.py`): NONE runs every op from Python, unpadded; FULL replays one graph of
body and head; PIECEWISE replays the pieces of the body with live attention between them, then runs
the head. On a GPU the graphs are real, on a CPU they are emulated: there is no `if` for it here.
"""

from __future__ import annotations

import time

from torch import Tensor

from mini_engine.cuda.attention import Attention, DecodeAttention
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import GraphRunner, PiecewiseGraphRunner
from mini_engine.cuda.inputs import StaticInputs, StepInputs
from mini_engine.cuda.model import Model
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.scheduler import ScheduledBatch, SchedulerLimits
from mini_engine.engine.step_arrays import max_blocks


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
        """Captures nothing yet: until `capture()` the dispatcher is made to say NONE."""
        self.model, self.limits, self.dispatcher = model, limits, dispatcher
        self.backend, self.sample = backend, sample
        dispatcher.graphs_captured = False
        pieces = self._rungs(CUDAGraphMode.PIECEWISE)
        full = self._rungs(CUDAGraphMode.FULL)
        largest = max([limits.max_num_batched_tokens, *pieces, *full])
        self.inputs = StaticInputs(limits, largest, backend.device)
        self.pool = backend.graph_pool_handle()
        self.piecewise = PiecewiseGraphRunner(backend, self._piecewise_forward, pieces, self.pool)
        self.full = GraphRunner(backend, self._full_forward, full, self.pool)
        self._started = time.perf_counter()

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._started) * 1e6

    def wait_until(self, us: float) -> None:
        time.sleep(max(0.0, us - self.now_us) / 1e6)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """One step: stage the inputs, run the graph of the descriptor, sample.

        Returns the sampled tokens, in the order of the entries that sample.
        """
        rung, num_reqs = descriptor.num_tokens, descriptor.num_reqs or batch.num_reqs
        step = self.inputs.fill(batch, rung, num_reqs)
        if descriptor.mode is CUDAGraphMode.FULL:
            tokens = self.full.replay(rung)
        else:
            attention = self.model.live_attention(batch)
            if descriptor.mode is CUDAGraphMode.PIECEWISE:
                hidden = self.piecewise.run(rung, attention.begin(step))
            else:
                hidden = self.model.body(step, attention)
            _, tokens = self.model.head(hidden, step, self.sample)
        sampled = tokens.tolist()  # waits for the device
        return [sampled[i] for i, entry in enumerate(batch.entries) if entry.samples]

    # -- capture -------------------------------------------------------------------------------

    def capture(self) -> CaptureReport:
        """Capture what the dispatcher may choose: PIECEWISE, then FULL, each largest first.

        Rungs that find no memory are dropped, here and in the dispatcher. After an interrupt or an
        error no graph is left, and the dispatcher says NONE to every batch until the next call.
        """
        report = CaptureReport()
        self.dispatcher.graphs_captured = False
        try:
            self.inputs.clear()
            for mode, graphs in (
                (CUDAGraphMode.PIECEWISE, self.piecewise),
                (CUDAGraphMode.FULL, self.full),
            ):
                captured = graphs.capture()
                report.add(captured)
                self.dispatcher.drop(mode, captured.dropped)
            self.dispatcher.graphs_captured = True
        except BaseException:
            self.release()
            raise
        return report

    def release(self) -> None:
        """Give all graphs and their memory back: from here on every batch runs eagerly."""
        self.dispatcher.graphs_captured = False
        self.piecewise.reset()
        self.full.reset()
        # A capture that CUDA gave up has spoiled the pool: the next one gets another.
        self.piecewise.pool = self.full.pool = self.pool = self.backend.graph_pool_handle()

    def _piecewise_forward(self, rung: int, attention: Attention) -> Tensor:
        return self.model.body(self._inputs_of(rung), attention)

    def _full_forward(self, rung: int) -> Tensor:
        """With an attention whose shapes are fixed: of decodes only where mixed batches run in
        another way, else of any mix."""
        blocks = max_blocks(self.limits)
        attention = self.model.captured_attention(blocks)
        if self.dispatcher.mode.separate_routine():
            attention = DecodeAttention(blocks, self.limits.block_size)
        step = self._inputs_of(rung)
        _, tokens = self.model.head(self.model.body(step, attention), step, self.sample)
        return tokens

    def _inputs_of(self, rung: int) -> StepInputs:
        """A rung of n tokens has room for n requests, or for `max_num_seqs` if that is less."""
        return self.inputs.view(rung, min(rung, self.limits.max_num_seqs))

    def _rungs(self, mode: CUDAGraphMode) -> list[int]:
        return [d.num_tokens for d in self.dispatcher.descriptors() if d.mode is mode]
