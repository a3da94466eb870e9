"""Size a server: what of a card's memory goes where, and so how many KV blocks there are.

In:  a model, a device, the mode and ladder of graphs, the largest batch.
Out: a `SizedServer`: the scheduler's limits, the dispatcher, and what its graphs cost.

    card = reserved + weights + activations of the largest step + graphs + KV cache
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import SchedulerLimits
from mini_engine.model.config import ModelConfig
from mini_engine.serving.ladder_cost import GraphCosts, LadderCosts
from mini_engine.step.capacity import step_bytes
from mini_engine.step.cards import DeviceSpec
from mini_engine.step.storage import Stored, stored_as

BLOCK_SIZE = 16  # tokens
MIN_BLOCKS = 2  # the null block, and one for requests


@dataclass(frozen=True)
class SizedServer:
    limits: SchedulerLimits
    dispatcher: GraphDispatcher
    graph_costs: GraphCosts  # of all graphs, which are captured at start-up


def size_server(
    config: ModelConfig,
    spec: DeviceSpec,
    mode: CUDAGraphMode | str,
    capture_sizes: Sequence[int],
    *,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
    stored: Stored | None = None,
) -> SizedServer:
    """All memory that nothing else needs becomes KV blocks.

    The defaults: 256 requests, as in the engines that this course reads; steps of 8,192 tokens, as
    in vLLM 0.33 on a card of 70 GiB or more (EngineArgs.get_batch_defaults; it allows 1,024
    requests there); weights and cache as they are.

    Raises ValueError where not even one block is left, and for a number that is out of range.
    """
    dispatcher = GraphDispatcher(mode, capture_sizes, max_num_seqs)
    stored = stored or stored_as(config)
    costs = LadderCosts(config, spec, mode, max_num_seqs, stored=stored).of(capture_sizes)
    used = spec.reserved_bytes + stored.held + costs.memory_bytes
    used += step_bytes(config, max_num_batched_tokens, max_num_seqs)
    left, block_bytes = spec.vram_bytes - used, BLOCK_SIZE * stored.kv_bytes_per_token(config)
    num_blocks = left // block_bytes
    if num_blocks < MIN_BLOCKS:
        raise ValueError(
            f"{config.name} on {spec.name}: {used / 1e9:.1f} GB of {spec.vram_bytes / 1e9:.1f} GB "
            f"are taken before the KV cache, and {MIN_BLOCKS} blocks of {BLOCK_SIZE} tokens "
            f"take {MIN_BLOCKS * block_bytes / 1e9:.2f} GB: use a larger card, a smaller model or "
            "fewer rungs"
        )
    limits = SchedulerLimits(
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_model_len=config.max_position_embeddings,
    )
    return SizedServer(limits, dispatcher, costs)
