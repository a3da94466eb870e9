"""Size a server: what of a card's memory goes where, and so how many KV blocks there are.

In:  a model, a device, the mode and ladder of graphs, the largest batch.
Out: a ServerPlan: the scheduler's limits, the dispatcher, and what its graphs cost at start-up.

    card = reserved + weights + activations of the largest step + graphs + KV cache
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.predict.capacity import (
    activation_bytes,
    kv_bytes_per_token,
    logit_bytes,
    weight_bytes,
)
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.oplists import StepShape, step_ops
from mini_engine.predict.payoff import capture_cost
from mini_engine.serving.simulate import LAUNCHED_AS, padded_reqs


@dataclass(frozen=True)
class ServerPlan:
    limits: SchedulerLimits
    dispatcher: GraphDispatcher
    graphs: int  # held after start-up: one a rung if full, a piece each if piecewise
    graph_node_bytes: int  # what the driver keeps for their nodes
    graph_pool_bytes: int  # activations of the largest rung; the smaller ones share them
    capture_us: float  # warm-up, capture and instantiation of all of them

    @property
    def graph_memory_bytes(self) -> int:
        return self.graph_node_bytes + self.graph_pool_bytes


def plan_server(
    config: ModelConfig,
    spec: DeviceSpec,
    mode: CUDAGraphMode | str,
    capture_sizes: Sequence[int],
    *,
    style: str = "fused9",
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    block_size: int = 16,
    max_model_len: int | None = None,
) -> ServerPlan:
    """All memory that nothing else needs becomes KV blocks.

    256 requests, as in the engines that this course reads, in steps of 8,192 tokens, as vLLM 0.33
    serves on a card of 70 GiB or more (EngineArgs.get_batch_defaults; it allows 1,024 requests
    there); the default context is the model's own.

    Raises:
        ValueError: not even one block is left, or a number is out of range.
    """
    dispatcher = GraphDispatcher(mode, capture_sizes, max_num_seqs)
    graphs, node_bytes, capture_us = 0, 0, 0.0
    pool_bytes = 0
    for descriptor in dispatcher.descriptors():
        reqs = padded_reqs(descriptor, 1)
        ops = step_ops(
            config, StepShape(descriptor.num_tokens, reqs, 0, 0), style
        )  # on null inputs
        cost = capture_cost(ops, spec, LAUNCHED_AS[descriptor.mode])
        graphs += cost.graphs
        node_bytes += cost.node_bytes
        capture_us += cost.total_us
        logits = reqs if descriptor.mode is CUDAGraphMode.FULL else 0
        pool_bytes = max(pool_bytes, _step_bytes(config, descriptor.num_tokens, logits))
    used = spec.reserved_bytes + weight_bytes(config) + node_bytes + pool_bytes
    used += _step_bytes(config, max_num_batched_tokens, max_num_seqs)
    block_bytes = block_size * kv_bytes_per_token(config)
    num_blocks = (spec.vram_bytes - used) // block_bytes
    if num_blocks < 2:
        raise ValueError(
            f"{config.name} on {spec.name}: {used / 1e9:.1f} GB of {spec.vram_bytes / 1e9:.1f} GB "
            "are taken before the KV cache: use a larger card, a smaller model or fewer rungs"
        )
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=block_size,
        max_model_len=max_model_len or config.max_position_embeddings,
    )
    return ServerPlan(limits, dispatcher, graphs, node_bytes, pool_bytes, capture_us)


def _step_bytes(config: ModelConfig, num_tokens: int, num_reqs: int) -> int:
    """What a step holds beside weights and KV: activations, and logits of each request."""
    return activation_bytes(config, num_tokens) + num_reqs * logit_bytes(config)
