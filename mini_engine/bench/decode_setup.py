"""What all variants of one comparison share: model, filled KV cache, where a decode step starts.

The cache holds random keys and values up to the context: they do not change what a decode step
costs. Our own variants write into it one after the other, each a position before it reads it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mini_engine.cuda.attention import DecodeAttention
from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import Weights
from mini_engine.step.kernels import OpCost, StepShape, step_ops

BLOCK_SIZE = 16


class Variant:
    """One way to decode on a setup. `outputs`: for each step of the last call its logits (batch,
    vocab) and the tokens (batch,) that it sampled; the next call may overwrite them."""

    steps_a_call = 1

    def __init__(self, setup: DecodeSetup) -> None:
        self.setup, self.outputs = setup, list[tuple[Tensor, Tensor]]()

    def prepare(self) -> None:
        """Compile, capture: everything that a server does once. May run steps."""
        self.rewind()
        self.step()

    def place(self, tokens: Tensor, context: int) -> None:
        """The next step is fed tokens (batch,) int32, the last of `context` in each request."""

    def rewind(self) -> None:
        self.place(self.setup.first_tokens, self.setup.context)

    def step(self) -> None:
        """Queue the next step; its input is the last one's output."""

    def feed(self, tokens: Tensor) -> None:
        """Teacher forcing, where a call is a step: the next one is fed these."""

    def ops(self, style: str = "hf56") -> list[OpCost]:
        """What one call runs, for the simulator: what an engine of this style launches."""
        shape = StepShape.decode(self.setup.batch, self.setup.context)
        return step_ops(self.setup.model.config, shape, style)

    def release(self) -> None:
        """Give graphs and memory back."""
        self.outputs = []


@dataclass(frozen=True, eq=False)
class DecodeSetup:
    """One batch of requests, each of `context` tokens, with room for more."""

    backend: GraphBackend
    model: Model
    batch: int
    context: int
    room: int  # tokens a request may grow to: whole blocks
    block_table: Tensor  # (batch, room / BLOCK_SIZE) int32
    first_tokens: Tensor  # (batch,) int32: the last of the context, fed by the first step

    @property
    def attention(self) -> DecodeAttention:
        return DecodeAttention(self.block_table.shape[1], BLOCK_SIZE)

    def inputs(self) -> StepInputs:
        """New static inputs, filled for the first step."""
        row = torch.zeros_like(self.first_tokens)
        step = StepInputs(
            input_ids=row.clone(), positions=row.clone(), slot_mapping=row.clone(),
            query_lens=row + 1, context_lens=row.clone(), last_rows=(row + 1).cumsum(0).int() - 1,
            block_table=self.block_table.clone(),
        )  # fmt: skip
        self.place(step, self.first_tokens, self.context)
        return step

    def place(self, inputs: StepInputs, tokens: Tensor, context: int) -> None:
        """Fill `inputs` for a step, in place."""
        last = context - 1
        block = self.block_table[:, last // BLOCK_SIZE]
        inputs.input_ids.copy_(tokens)
        inputs.positions.fill_(last)
        inputs.context_lens.fill_(context)
        inputs.slot_mapping.copy_(block * BLOCK_SIZE + last % BLOCK_SIZE)

    def cached(self, length: int) -> list[tuple[Tensor, Tensor]]:
        """Copies of the first `length` K and V of each layer, (batch, kv_heads, length, D)."""
        blocks = self.block_table[:, : -(-length // BLOCK_SIZE)].long()

        def gathered(cache: Tensor) -> Tensor:
            # (batch, blocks, block_size, kv_heads, D)
            return cache[blocks].flatten(1, 2)[:, :length].transpose(1, 2).contiguous()

        cache = self.model.cache
        return list(zip(map(gathered, cache.keys), map(gathered, cache.values), strict=True))


def build_setup(
    backend: GraphBackend, weights: Weights, batch: int, context: int, room: int
) -> DecodeSetup:
    """Fill a cache for `batch` requests. Raises ValueError when the model cannot reach `room`."""
    config, device = weights.config, weights.embed.device
    blocks = -(-room // BLOCK_SIZE)
    room, most = blocks * BLOCK_SIZE, config.max_position_embeddings
    if room > most:
        raise ValueError(f"context {context} needs room for {room}: {config.name} reaches {most}")
    cache = KVCache.allocate(config, 1 + batch * blocks, BLOCK_SIZE, device, weights.embed.dtype)
    generator = torch.Generator(device).manual_seed(1)
    for one in (*cache.keys, *cache.values):
        one.normal_(generator=generator)
    # Scattered, as on a server that has run for a while; block 0 is the null block.
    order = torch.randperm(batch * blocks, generator=torch.Generator().manual_seed(2)) + 1
    table = order.view(batch, blocks).to(device, torch.int32)
    first = torch.randint(config.vocab_size, (batch,), generator=torch.Generator().manual_seed(3))
    first = first.to(device, torch.int32)
    return DecodeSetup(backend, Model(weights, cache), batch, context, room, table, first)


def float32_setup(setup: DecodeSetup, context: int, room: int) -> DecodeSetup:
    """The same requests, weights, keys and values in float32: the gate's reference."""
    weights = setup.model.weights
    embed, head = weights.embed.float(), weights.lm_head
    layers = [
        replace(layer, **{name: x.float() for name, x in vars(layer).items() if x is not None})
        for layer in weights.layers
    ]
    weights = replace(
        weights, embed=embed, layers=tuple(layers), final_norm=weights.final_norm.float(),
        lm_head=embed if head is weights.embed else head.float(),
    )  # fmt: skip
    wide = build_setup(setup.backend, weights, setup.batch, context, room)
    kept = min(wide.room, setup.room)
    blocks = wide.block_table[:, : -(-kept // BLOCK_SIZE)].long()
    into = zip(wide.model.cache.keys, wide.model.cache.values, strict=True)
    for caches, both in zip(into, setup.cached(kept), strict=True):
        for cache, values in zip(caches, both, strict=True):
            rows = values.transpose(1, 2).float()  # (batch, kept, kv_heads, D)
            cache[blocks] = rows.reshape(*blocks.shape, BLOCK_SIZE, *rows.shape[2:])
    return wide
