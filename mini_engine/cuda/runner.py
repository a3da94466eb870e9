"""The engine's runner in PyTorch: a scheduled batch in, sampled tokens out.

The dispatcher chooses how a batch runs: NONE runs every op from Python, unpadded; FULL replays one
graph of body and head; PIECEWISE replays the pieces of the body with live attention between them,
then runs the head.

A batch of decodes runs in the decode kernels of a `FusedModel`, in FULL from graphs for decodes
alone, of one step and of `limits.steps_per_replay`. A prompt of which one token is left is no
decode: another request may fill the block before it in this very step (rule 2 of
engine/prefix_cache.py), and a kernel that stores K and V and attends may read no row that another
one writes. The same holds for a decode and its drafts: these run as prompts do.
"""

from __future__ import annotations

import time
from functools import partial

import torch
from torch import Tensor

from mini_engine.cuda.attention import Attention, DecodeAttention
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.capture import GraphRunner, PiecewiseGraphRunner
from mini_engine.cuda.inputs import StaticInputs, StepInputs
from mini_engine.cuda.model import Model
from mini_engine.cuda.sampling import Sampler, SeededSampler, greedy
from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import ScheduledBatch, SchedulerLimits
from mini_engine.engine.sampling import check_greedy
from mini_engine.engine.step_arrays import max_blocks


class TorchRunner:
    """Runs batches of one model. Fits `mini_engine.engine.engine.Runner`."""

    def __init__(
        self, model: Model, limits: SchedulerLimits, dispatcher: GraphDispatcher,
        backend: GraphBackend, *, sampling: bool = False,
    ) -> None:  # fmt: skip
        """Captures nothing yet: until `capture()` the dispatcher says NONE. With `sampling` each
        request is drawn as its `SamplingParams` say; without, graphs hold nothing but an argmax."""
        self.model, self.limits, self.dispatcher = model, limits, dispatcher
        self.backend = backend
        self.width = limits.decode_query_len  # rows that are sampled, of each request
        rows = limits.max_num_seqs * self.width
        self.sample: Sampler = SeededSampler(rows, backend.device) if sampling else greedy
        dispatcher.graphs_captured = False
        piecewise = self._rungs(CUDAGraphMode.PIECEWISE)
        full = self._rungs(CUDAGraphMode.FULL)
        of_full = [d for d in dispatcher.descriptors() if d.mode is CUDAGraphMode.FULL]
        self._reqs = {d.num_tokens: d.num_reqs or 0 for d in of_full}
        largest = max([limits.max_num_batched_tokens, *piecewise, *full])
        self.inputs = StaticInputs(limits, largest, backend.device)
        # One pool and one stream for all ladders: an allocator that keeps blocks apart by stream
        # would share nothing between two.
        self.pool, stream = backend.graph_pool_handle(), backend.Stream()
        self.piecewise = PiecewiseGraphRunner(
            backend, lambda rung, attention: self.model.body(self._inputs_of(rung), attention),
            piecewise, self.pool, stream,
        )  # fmt: skip
        self._decodes_alone = dispatcher.mode.separate_routine() and self.width == 1
        self.mixed = GraphRunner(
            backend, self._mixed_forward, [] if self._decodes_alone else full, self.pool, stream
        )
        decodes = [rung for rung in full if rung <= limits.max_num_seqs and self.width == 1]
        one_step = partial(self._decode_forward, 1)
        self.full = GraphRunner(backend, one_step, decodes, self.pool, stream)
        several_steps = partial(self._decode_forward, limits.steps_per_replay)
        several = decodes if limits.steps_per_replay > 1 else []
        self.several = GraphRunner(backend, several_steps, several, self.pool, stream)
        self._started = time.perf_counter()

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._started) * 1e6

    def wait_until(self, us: float) -> None:
        time.sleep(max(0.0, us - self.now_us) / 1e6)

    def steps_of(self, descriptor: BatchDescriptor) -> int:
        """Decode steps that one replay can run in place of one: 1 where no such graph is."""
        full = descriptor.mode is CUDAGraphMode.FULL
        several = full and descriptor.num_tokens in self.several.captured
        return self.limits.steps_per_replay if several else 1

    @torch.inference_mode()
    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """One step, or `batch.steps`: stage the inputs, run the graph of the descriptor, sample.
        Returns the tokens, step by step in the order of the rows that are sampled."""
        rung, num_reqs = descriptor.num_tokens, descriptor.num_reqs or batch.num_reqs
        step = self.inputs.fill(batch, rung, num_reqs)
        params = [entry.request.sampling for entry in batch.entries for _ in range(self.width)]
        if isinstance(self.sample, SeededSampler):
            self.sample.set_rows(params)
        else:
            check_greedy(params)
        if descriptor.mode is CUDAGraphMode.FULL:
            graphs = self.several if batch.steps > 1 else self.full
            if batch.has_prefill or rung not in graphs.captured:
                graphs = self.mixed
            tokens = graphs.replay(rung)
        elif descriptor.mode is CUDAGraphMode.PIECEWISE:
            attend = self.model.live_attention(batch).begin(step)
            _, tokens = self.model.head(self.piecewise.run(rung, attend), step, self.sample)
        else:
            attention = self.model.live_attention(batch)
            if self.model.kernels_per_layer and not batch.has_prefill and self.width == 1:
                attention = DecodeAttention(max_blocks(self.limits), self.limits.block_size)
            tokens = self._tokens(step, attention)
        sampling = batch.sampled_rows(self.width)
        sampled = tokens.view(batch.steps, -1).tolist()  # waits for the device, once
        return [now[row] for now in sampled for row in sampling]

    # -- capture -------------------------------------------------------------------------------

    @torch.inference_mode()
    def capture(self) -> CaptureReport:
        """Capture what the dispatcher may choose: PIECEWISE, then FULL, each largest first. A rung
        that finds no memory is dropped, in the dispatcher too; one that another graph can serve is
        only reported. After an error no graph is left."""
        report = CaptureReport()
        self.dispatcher.graphs_captured = False
        serving = self.full if self._decodes_alone else self.mixed
        modes = {self.piecewise: CUDAGraphMode.PIECEWISE, serving: CUDAGraphMode.FULL}
        every = self.piecewise, self.mixed, self.full, self.several
        ladders = [graphs for graphs in every if graphs.rungs]  # that the mode has a use for
        try:
            self.inputs.clear()
            for graphs in ladders:
                captured = graphs.capture()
                if mode := modes.get(graphs):
                    self.dispatcher.drop(mode, captured.dropped)
                else:
                    captured.spared, captured.dropped = captured.dropped, []
                report.add(captured)
            self.dispatcher.graphs_captured = True
        except BaseException:
            # A capture that CUDA gave up has spoiled the pool: the next one gets another.
            self.pool = self.backend.graph_pool_handle()
            for graphs in ladders:
                graphs.reset()
                graphs.pool = self.pool
            raise
        return report

    def _mixed_forward(self, rung: int) -> Tensor:
        """Any mix of prompts and decodes, or decodes with drafts."""
        attention = self.model.captured_attention(max_blocks(self.limits))
        return self._tokens(self.inputs.view(rung, self._reqs[rung]), attention)

    def _decode_forward(self, steps: int, rung: int) -> Tensor:
        """So many decode steps, each fed by the one before: tokens (R,), or (steps, R)."""
        step = self._inputs_of(rung)
        attention = DecodeAttention(max_blocks(self.limits), self.limits.block_size)
        if steps > 1:
            return self.model.decode(step, attention, steps, self.sample)
        return self._tokens(step, attention)

    def _tokens(self, step: StepInputs, attention: Attention) -> Tensor:
        _, tokens = self.model.head(self.model.body(step, attention), step, self.sample)
        return tokens

    def _inputs_of(self, rung: int) -> StepInputs:
        """A rung of n tokens has room for n requests, or for `max_num_seqs` if that is less."""
        return self.inputs.view(rung, min(rung, self.limits.max_num_seqs))

    def _rungs(self, mode: CUDAGraphMode) -> list[int]:
        return [d.num_tokens for d in self.dispatcher.descriptors() if d.mode is mode]
