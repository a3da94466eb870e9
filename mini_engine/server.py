"""A model on a card, served by an engine: the predictions of this project behind one object.

    from mini_engine import Server

    server = Server("qwen3-8b", card="l40s", engine="vllm")
    print(server.itl(batch=4))                     # 22 ms (19 to 25), FULL
    server.explain(batch=4, itl_ms=26).cpu_us      # the GPU waits for the CPU
    server.ladder({33: 100, 1: 7}, rungs=2)        # [1, 33]
    server.replay("trace.csv").itl_p99_us

Nothing here needs PyTorch or a GPU. Modes are vLLM's: NONE, PIECEWISE, FULL, FULL_AND_PIECEWISE."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import optimal_ladder
from mini_engine.model.config import ModelConfig
from mini_engine.model.hub import shape_of
from mini_engine.serving.ladder_cost import SizedServer, size_server
from mini_engine.serving.replay import replay
from mini_engine.serving.report import ServeReport
from mini_engine.serving.request_trace import TraceRequest, read_trace
from mini_engine.step.capacity import check_batch
from mini_engine.step.cards import load_spec
from mini_engine.step.curves import step_floor_us
from mini_engine.step.explain import Explained, explain
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import padded_step
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import stored_as


class Itl(NamedTuple):
    """A predicted inter-token latency in ms, and its 80% interval, where one is known."""

    ms: float
    low: float | None
    high: float | None
    mode: str  # how the batch is launched

    def __str__(self) -> str:
        known = "" if self.low is None else f" ({self.low:.2g} to {self.high:.2g})"
        return f"{self.ms:.2g} ms{known}, {self.mode}"


class Server:
    """Raises ValueError for a name that is not known, with those that are."""

    def __init__(
        self, model: str | Path | ModelConfig, card: str | Path = "h200", *,
        host: str | Path | None = None, engine: str | Path | None = None,
        quant: str | None = None, kv_dtype: str | None = None,
        max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None, tp: int = 1,
    ) -> None:  # fmt: skip
        """`model`: a shape by name, a folder with a config.json, a hub id of the local cache, or a
        config. `tp`: cards that compute each step together; bytes are those of one. Weights and
        cache are stored as the checkpoint is, and limits are vLLM's on this card, by default."""
        self.config = (model if isinstance(model, ModelConfig) else shape_of(str(model))).shard(tp)
        self.spec = load_spec(card, host, engine)
        self.stored = stored_as(self.config, quant, kv_dtype)
        self.costs = StepModel(self.config, self.spec, self.stored)
        seqs, tokens = self.spec.batch_defaults
        self.max_num_seqs = max_num_seqs or seqs
        self.max_num_batched_tokens = max_num_batched_tokens or tokens

    def itl(self, batch: int = 1, context: int = 1024, mode: str = "FULL_AND_PIECEWISE") -> Itl:
        """A decode step of `batch` requests with `context` tokens each, padded to vLLM's sizes.
        Raises ValueError where so many do not fit the card."""
        check_batch(self.costs, batch, context)
        dispatcher = GraphDispatcher(mode, self.capture_sizes(mode), self.max_num_seqs)
        descriptor, keys = dispatcher.dispatch(batch, batch, 1), batch * context
        us = self.costs.itl_us(*padded_step(descriptor, batch, keys, keys))
        floor = step_floor_us(self.config, self.spec, batch, context, self.stored)
        name = str(descriptor.mode)
        low, high = self.spec.interval(us / 1e3, name, batch, floor / 1e3) or (None, None)
        return Itl(us / 1e3, low, high, name)

    def explain(
        self, batch: int = 1, context: int = 1024, itl_ms: float | None = None,
        mode: str | None = None,
    ) -> Explained:  # fmt: skip
        """A measured step (or, without `itl_ms`, the predicted eager one) taken apart. Raises
        ValueError where so many requests do not fit the card."""
        check_batch(self.costs, batch, context)
        return explain(self.costs, batch, context, itl_ms and itl_ms * 1e3, mode)

    def ladder(self, histogram: Mapping[int, int], rungs: int = 8) -> list[int]:
        """The capture sizes that lose least time on these steps. `histogram`: rows in a batch ->
        number of decode steps."""
        shapes = {n: StepShape.decode(n, 1024) for n in range(1, max(histogram, default=0) + 1)}
        us = {n: self.costs.itl_us("full", shape) for n, shape in shapes.items()}
        return [*optimal_ladder(histogram, rungs, cost=us.__getitem__)]

    def replay(
        self, trace: str | Path | Sequence[TraceRequest], mode: str = "FULL_AND_PIECEWISE",
        capture_sizes: Sequence[int] | None = None,
    ) -> ServeReport:  # fmt: skip
        """Serve the requests of a trace: every step, as vLLM's scheduler decides it."""
        requests = read_trace(trace) if isinstance(trace, str | Path) else trace
        sized = self.sized(mode, capture_sizes)
        return replay(requests, self.costs, sized.limits, sized.dispatcher)

    def sized(
        self, mode: str, capture_sizes: Sequence[int] | None = None, **more: Any
    ) -> SizedServer:
        """Its scheduler's limits, its dispatcher and what its graphs cost. `more`: kv_blocks,
        prefix_caching (`size_server`). Raises ValueError where no block is left."""
        return size_server(
            self.config, self.spec, mode, self.capture_sizes(mode, capture_sizes),
            stored=self.stored, max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens, **more,
        )  # fmt: skip

    def capture_sizes(self, mode: str, asked: Sequence[int] | None = None) -> list[int]:
        """vLLM's, or those that were `asked` for and that a step reaches."""
        limits = self.max_num_seqs, self.max_num_batched_tokens
        return default_capture_sizes(*limits, capture_sizes=asked, mode=mode)
