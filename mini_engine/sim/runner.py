"""The engine's runner on the simulated GPU: a scheduled batch in, sampled tokens out.

* NONE: every launch from the CPU, unpadded;
* FULL: one graph for the body and the head, padded to its rung;
* PIECEWISE: the pieces of the body as graphs, attention and the head live. The head's shape depends
  on the number of requests, which is not in the key of a piecewise graph.

Padded rows read zeros: token 0 at position 0, written to slot 0 of block 0, which is nobody's."""

from collections.abc import Sequence

from mini_engine.dispatch.capture_report import CaptureReport
from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import ScheduledBatch, SchedulerLimits
from mini_engine.engine.sampling import GREEDY, check_greedy
from mini_engine.engine.step_arrays import max_blocks, step_arrays, step_shapes
from mini_engine.model.config import ModelConfig
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer
from mini_engine.sim.model import KVCache, Model, StepInputs
from mini_engine.sim.piecewise import PiecewiseGraphRunner
from mini_engine.sim.sampling import param_rows
from mini_engine.sim.weights import Weights
from mini_engine.step.run import around

SPLITTING_OPS = frozenset({"attention"})
FULL, PIECEWISE = CUDAGraphMode.FULL, CUDAGraphMode.PIECEWISE


class ModelInputs(StaticInputs):
    """The static buffers of a step. A graph of n tokens reads those of min(n, max_num_seqs)
    requests: a batch has no more, since each request brings at least one token."""

    def __init__(self, device: Device, limits: SchedulerLimits, max_tokens: int) -> None:
        self.max_num_seqs = limits.max_num_seqs
        sizes = self.max_num_seqs, max_blocks(limits), limits.decode_query_len
        shapes = step_shapes(max_tokens, *sizes)
        super().__init__(device, {name: (shape, "int32") for name, shape in shapes.items()})

    def view(self, rows: int) -> dict[str, Buffer]:
        return vars(self.step(rows, min(rows, self.max_num_seqs)))

    def step(self, num_tokens: int, num_reqs: int) -> StepInputs:
        return StepInputs(**self.buffers).rows(num_tokens, num_reqs)


class SimRunner:
    def __init__(
        self, device: Device, config: ModelConfig, weights: Weights | None, limits: SchedulerLimits,
        dispatcher: GraphDispatcher, *, share_pool: bool = True, sampling: bool = False,
    ) -> None:  # fmt: skip
        """Captures nothing yet: call `capture()`. With `sampling` each request is drawn as its
        `SamplingParams` say; without, all are greedy."""
        self.device, self.limits, self.dispatcher = device, limits, dispatcher
        cache_dtype = "float32" if weights else "float16"
        cache = KVCache.allocate(device, config, limits.num_blocks, limits.block_size, cache_dtype)
        self.model = Model(device, config, weights, cache)
        rungs = [descriptor.num_tokens for descriptor in dispatcher.descriptors()]
        self.inputs = ModelInputs(device, limits, max([limits.max_num_batched_tokens, *rungs]))
        self.width = limits.decode_query_len  # rows that are sampled, of each request
        self.params: Buffer | None = None  # of each row, where rows are drawn
        if sampling:
            self.params = device.upload(param_rows([GREEDY] * (limits.max_num_seqs * self.width)))
        self.pool, self.share_pool = device.memory.new_pool(), share_pool
        self.graphs: dict[CUDAGraphMode, GraphRunner] = {}  # what is captured, by run-time mode

    @property
    def now_us(self) -> float:
        return self.device.cpu_us

    def wait_until(self, us: float) -> None:
        self.device.wait_until(us)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """One step. Returns the sampled tokens, in the order of the rows that are sampled."""
        device = self.device
        before_us, beside_us = around(device.spec, batch.num_reqs)
        device.host_work("schedule and prepare", before_us)
        tokens = self._launch(batch, descriptor)
        device.host_work("schedule the next step", beside_us)
        sampled = device.read(tokens)
        if descriptor.mode is not FULL or FULL not in self.graphs:  # a graph keeps its output
            device.free(tokens)
        return [int(sampled[row]) for row in batch.sampled_rows(self.width)]

    def capture(self, order: Sequence[int] | None = None) -> CaptureReport:
        """Capture what the dispatcher may choose: PIECEWISE, then FULL, each largest first or in
        this order. Rungs that find no memory are dropped, here and in the dispatcher."""
        report, descriptors = CaptureReport(), self.dispatcher.descriptors()
        reqs = {d.num_tokens: d.num_reqs or 0 for d in descriptors if d.mode is FULL}
        for mode in (PIECEWISE, FULL):
            rungs = sorted(d.num_tokens for d in descriptors if d.mode is mode)
            if not rungs:
                continue
            if mode is PIECEWISE:
                self.graphs[mode] = PiecewiseGraphRunner(
                    self.device, lambda rung: self.model.body(StepInputs(**self.inputs.view(rung))),
                    self.inputs, rungs,
                    SPLITTING_OPS, share_pool=self.share_pool, pool=self.pool,
                )  # fmt: skip
            else:
                self.graphs[mode] = GraphRunner(
                    self.device, lambda rung: self._whole(self.inputs.step(rung, reqs[rung])),
                    self.inputs, rungs, share_pool=self.share_pool, pool=self.pool,
                )  # fmt: skip
            captured = self.graphs[mode].capture(order)
            self.dispatcher.drop(mode, captured.dropped)
            report.add(captured)
        return report

    def _launch(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> Buffer:
        """Launch a step. Its sampled tokens, (R q,) int32, once the GPU is done."""
        arrays = step_arrays(batch, self.limits)
        params = [entry.request.sampling for entry in batch.entries]
        if self.params:
            rows = [one for one in params for _ in range(self.width)]
            padding = [GREEDY] * (len(self.params) - len(rows))
            self.device.copy_batch([(self.params, param_rows([*rows, *padding]))])
        else:
            check_greedy(params)
        graphs, rung = self.graphs.get(descriptor.mode), descriptor.num_tokens
        if graphs and descriptor.mode is FULL:
            return graphs.run_at(rung, batch.num_reqs * self.width, arrays)
        step = self.inputs.step(batch.num_tokens, batch.num_reqs)
        if graphs:
            with self.device.live():
                return self._head(graphs.run_at(rung, batch.num_tokens, arrays), step)
        self.device.copy_batch([(buffer, arrays[name]) for name, buffer in vars(step).items()])
        return self._whole(step)

    def _whole(self, step: StepInputs) -> Buffer:
        hidden = self.model.body(step)
        tokens = self._head(hidden, step)
        self.device.free(hidden)
        return tokens

    def _head(self, hidden: Buffer, step: StepInputs) -> Buffer:
        if self.params is None:
            return self.model.head(hidden, step.last_rows)
        sampling = step.positions, self.params[: len(step.last_rows)]
        return self.model.head(hidden, step.last_rows, sampling=sampling)
