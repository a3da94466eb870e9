"""What fits on a card: weights, graphs, activations, and how much KV cache that leaves.

These are sums, not measurements: allocators round up, and engines differ in what they keep alive.
KV blocks of 16 tokens round each request up by 15 tokens at most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from mini_engine.model.config import ModelConfig
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import Stored, stored_as

EAGER_TOKENS = 2048  # of the largest step: vLLM 0.33's max_num_batched_tokens on most cards


class Fit(NamedTuple):
    left_bytes: int  # beside `batch` requests; below 0: so many are missing
    max_batch: int  # requests of this context
    max_context: int  # tokens of one request alone


@dataclass(frozen=True)
class CapacityReport:
    """Bytes on the card. `kv_bytes` is the cache of `batch` requests of `context` tokens."""

    context: int
    batch: int
    vram_bytes: int
    reserved_bytes: int
    weight_bytes: int
    activation_bytes: int  # the largest step outside graphs, logits included
    graph_pool_bytes: int  # activations of the largest rung; smaller ones share them
    graph_node_bytes: int  # what the driver keeps for the nodes of all rungs
    kv_bytes_per_token: int
    kv_bytes: int
    left_bytes: int  # below 0: it does not fit
    max_context: int  # of one request alone, by memory; 0 when not even one token fits
    model_context: int  # what the model was made for: do not trust positions beyond it
    max_batch: int  # at `context`; 0 when not even one request fits
    floor_ms: float  # of a step of this batch, at the datasheet's bandwidth
    copy_floor_ms: float  # the same at the bandwidth that a copy reaches

    @property
    def fits(self) -> bool:
        return self.left_bytes >= 0

    def rows(self) -> list[tuple[str, int, str]]:
        cache = f"{self.batch} x {self.context:,} tokens, {self.kv_bytes_per_token:,} bytes each"
        return [
            ("card", self.vram_bytes, "all there is"),
            ("reserved", self.reserved_bytes, "CUDA context and libraries"),
            ("weights", self.weight_bytes, "scales included"),
            ("activations", self.activation_bytes, "of the largest eager step"),
            ("graph pool", self.graph_pool_bytes, "activations of the largest rung, shared"),
            ("graph nodes", self.graph_node_bytes, "kept by the driver"),
            ("KV cache", self.kv_bytes, cache),
            ("left", self.left_bytes, "free" if self.fits else "missing: it does not fit"),
        ]


def capacity(
    config: ModelConfig, spec: DeviceSpec, *, context: int, batch: int = 1,
    stored: Stored | None = None, capture_sizes: Sequence[int] = (),
) -> CapacityReport:  # fmt: skip
    """`stored`: weights and cache; as the checkpoint is where None is given. `capture_sizes`: of
    full graphs. Raises ValueError for a number below 1."""
    stored, top = stored or stored_as(config), max(capture_sizes, default=0)
    ops = step_ops(config, StepShape.decode(batch, context), spec.ops)
    node_bytes = sum(op.by != "torch" for op in ops) * len(capture_sizes) * spec.graph_node_bytes
    eager, pool = activation_bytes(config, EAGER_TOKENS), step_bytes(config, top, top)
    free = spec.vram_bytes - spec.reserved_bytes - stored.held - eager - pool - node_bytes
    kv_bytes, logits = stored.kv_bytes_per_token, logit_bytes(config)
    must_read = stored.must_read(batch * context, config.touched_share(batch))
    return CapacityReport(
        context, batch, spec.vram_bytes, spec.reserved_bytes, stored.held,
        activation_bytes=eager + batch * logits,
        graph_pool_bytes=pool, graph_node_bytes=node_bytes,
        kv_bytes_per_token=kv_bytes, kv_bytes=batch * context * kv_bytes,
        **fit(free, context, batch, kv_bytes, logits)._asdict(),
        model_context=config.max_position_embeddings,
        floor_ms=floor_ms(must_read, spec.bandwidth_gb_s),
        copy_floor_ms=floor_ms(must_read, spec.copy_bandwidth_gb_s),
    )  # fmt: skip


def fit(free_bytes: int, context: int, batch: int, per_token: int, per_request: int) -> Fit:
    """What fits into the bytes that are free for requests; they may be below 0. A request takes
    `per_token` bytes of cache for every token of its context, and `per_request` whatever its
    length. The limits are the largest whole numbers that still fit; what fits exactly fits; 0 when
    not even one does."""
    a_request = context * per_token + per_request
    return Fit(
        left_bytes=free_bytes - batch * a_request,
        max_batch=max(0, free_bytes // a_request),
        max_context=max(0, (free_bytes - per_request) // per_token),
    )


def activation_bytes(config: ModelConfig, num_tokens: int) -> int:
    """The most that is alive at once in a forward pass, without the logits. For each token: the
    residual, a normalised row, and gate, up and their product, or q, k, v and attention's output.
    """
    c = config
    widest = max(3 * c.mlp_columns, 2 * c.q_size + 2 * c.kv_size)
    return num_tokens * (2 * c.hidden_size + widest) * c.dtype_bytes


def step_bytes(config: ModelConfig, num_tokens: int, num_reqs: int) -> int:
    """What a step holds beside weights and KV cache: activations, and logits of its requests."""
    return activation_bytes(config, num_tokens) + num_reqs * logit_bytes(config)


def logit_bytes(config: ModelConfig) -> int:
    """Logits of one request, and a float32 copy of them to sample from."""
    return config.vocab_size * (config.dtype_bytes + 4)


def floor_ms(bytes_read: float, bandwidth_gb_s: float) -> float:
    """The least time of a step that reads these bytes, in ms. 1 GB is 1e9 bytes."""
    return bytes_read / (bandwidth_gb_s * 1e6)  # 1 GB/s is 1e6 bytes a ms


def check_context(config: ModelConfig, context: int) -> None:
    if context > config.max_position_embeddings:
        most = f"was made for {config.max_position_embeddings:,} tokens at most"
        if config.sliding_window:
            most = f"has a sliding window of {config.sliding_window:,} tokens, which is the most"
        raise ValueError(f"context {context:,}: {config.name} {most}: give that or less")


def check_batch(
    costs: StepModel, batch: int, context: int, capture_sizes: Sequence[int] = ()
) -> int:
    """The largest batch of requests of `context` tokens beside weights and full graphs of these
    sizes. Raises ValueError as `check_context`, and where it is smaller than `batch`."""
    config, spec, stored = costs.config, costs.spec, costs.stored
    check_context(config, context)
    report = capacity(config, spec, context=context, stored=stored, capture_sizes=capture_sizes)
    if (most := report.max_batch) < batch:
        raise ValueError(
            f"batch {batch:,}: {most:,} requests of {context:,} tokens fit the "
            f"{spec.name} beside {config.name} with weights in {stored.quant}: give a smaller "
            "batch, model or context, a larger card, or fewer bits (see capacity)"
        )
    return most
