"""The scales of a KV cache in fp8, measured on the model itself.

In:  `Weights`. Out: (2, kv_heads) float32 for each layer, for `KVCache.allocate`. Their addresses
     are those of weights: graphs may hold them.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_engine.cuda.attention import HostAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import Weights
from mini_engine.model.kv_fp8 import measured_tokens, scale_for


def measured_scales(weights: Weights) -> tuple[Tensor, ...]:
    """By one prefill of the tokens that `model/kv_fp8.py` names, in a cache of its own."""
    config, table = weights.config, weights.embed
    tokens = measured_tokens(config.vocab_size, config.max_position_embeddings)
    count = len(tokens)

    def row(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int32, device=table.device)

    inputs = StepInputs(
        input_ids=row(tokens),
        positions=row(list(range(count))),
        slot_mapping=row(list(range(count))),
        query_lens=row([count]),
        context_lens=row([count]),
        last_rows=row([count - 1]),
        block_table=row([0])[None],
    )
    cache = KVCache.allocate(config, 1, count, table.device, table.dtype)
    Model(weights, cache).body(inputs, HostAttention((count,), (count,), count))
    largest = [
        torch.stack([keys[0], values[0]]).abs().amax(dim=(1, 3)).tolist()
        for keys, values in zip(cache.keys, cache.values, strict=True)
    ]
    return tuple(
        torch.tensor([[scale_for(head) for head in heads] for heads in layer], device=table.device)
        for layer in largest
    )
