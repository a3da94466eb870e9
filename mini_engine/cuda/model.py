"""A decoder of the Qwen2.5, Qwen3 or Llama family, dense or with Qwen3's experts, in plain PyTorch:
the reference of every variant.

    hidden = model.body(inputs, attention)             # embed, layers                 (T, H)
    logits, tokens = model.head(hidden, inputs)        # final norm, greedy            (R, V), (R,)
    model.advance(inputs, tokens)                      # feed them back, on the device

Nothing here waits for the device, and no shape depends on its data: with a static attention all of
it can be captured. Norms, RoPE and softmax compute in float32 and round to the weights' dtype.
Shapes: T tokens, R requests, H hidden, D head_dim, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mini_engine.cuda import experts
from mini_engine.cuda.attention import Attention, HostAttention, RaggedAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.cuda.weights import LayerWeights, Weights
from mini_engine.engine.batch import ScheduledBatch
from mini_engine.model.config import ModelConfig


@dataclass(frozen=True, eq=False)
class KVCache:
    """Paged K and V of every layer, each (num_blocks, block_size, kv_heads, D)."""

    keys: tuple[Tensor, ...]
    values: tuple[Tensor, ...]

    @staticmethod
    def allocate(
        config: ModelConfig, num_blocks: int, block_size: int, device: torch.device,
        dtype: torch.dtype,
    ) -> KVCache:  # fmt: skip
        """Zeros; block 0 is the null block, where padded rows write."""
        shape = (num_blocks, block_size, config.num_kv_heads, config.head_dim)
        keys, values = (
            tuple(torch.zeros(shape, dtype=dtype, device=device) for _ in range(config.num_layers))
            for _ in range(2)
        )
        return KVCache(keys, values)

    @property
    def block_size(self) -> int:
        return self.keys[0].shape[1]


class Model:
    kernels_per_layer: Literal[0, 5, 9] = 0  # Triton kernels, in a decode step of one request
    pdl = False  # whether each kernel starts while the one before it drains

    def __init__(self, weights: Weights, cache: KVCache) -> None:
        self.config, self.weights, self.cache = weights.config, weights, cache
        self.cos, self.sin = rotary_tables(weights.config, weights.embed.device)

    def body(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """Hidden states after the last layer, (T, H). Writes K and V of every token."""
        slots = inputs.slot_mapping.long()
        cos = self.cos.index_select(0, inputs.positions)[:, None]  # (T, 1, D/2)
        sin = self.sin.index_select(0, inputs.positions)[:, None]
        attend = attention.begin(inputs)
        residual = functional.embedding(inputs.input_ids, self.weights.embed)
        for layer, keys, values in self._layers_with_cache():
            q, k, v = self._qkv(self._norm(residual, layer.input_norm), layer)
            q, k = rotated(q, cos, sin), rotated(k, cos, sin)
            for cache, new in ((keys, k), (values, v)):
                cache.view(-1, *new.shape[1:]).index_copy_(0, slots, new)
            attended = attend(q, keys, values)
            residual = residual + self._summed(functional.linear(attended.flatten(1), layer.o))
            normed = self._norm(residual, layer.post_norm)
            residual = residual + self._summed(self._mlp(normed, layer))
        return residual

    def live_attention(self, batch: ScheduledBatch) -> Attention:
        """How this model attends in a step that runs eagerly, or between the pieces of a graph."""
        return HostAttention(batch.query_lens, batch.context_lens, self.cache.block_size)

    def captured_attention(self, max_blocks: int) -> Attention:
        """How it attends inside a graph that takes any mix of prompts and decodes."""
        return RaggedAttention(max_blocks, self.cache.block_size)

    def head(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """Logits of each row that is sampled, one a request or more with drafts, (R q, V), and the
        token drawn from each, (R q,) int32."""
        last = self._norm(hidden.index_select(0, inputs.last_rows), self.weights.final_norm)
        logits, ranks = functional.linear(last, self.weights.lm_head), self.weights.ranks
        if ranks and logits.shape[1] < self.config.vocab_size:
            logits = ranks.gathered(logits)
        sampled_lens = inputs.context_lens  # up to each row that is sampled, (R q,)
        if len(inputs.last_rows) != len(sampled_lens):
            sampled_lens = inputs.positions.index_select(0, inputs.last_rows) + 1
        return logits, sample(logits, sampled_lens)

    def advance(self, inputs: StepInputs, tokens: Tensor) -> None:
        """Make `inputs` the next decode step, in place: each request's new token is its input.

        tokens (R,) int32. Position and context grow by one; the slot is that of the new position,
        in the block that block_table has for it. Padded rows (no context) stay all zeros. A request
        that goes on after its last block writes into the null block, and one that reaches
        `end_of_context` stays there: both are done, and the host throws away what they sample.
        Raises ValueError when a request has more than one token in `inputs`.
        """
        num_tokens, num_reqs = len(inputs.input_ids), len(inputs.context_lens)
        if not num_tokens == num_reqs == len(tokens):
            raise ValueError(
                f"{len(tokens)} sampled tokens for a step of {num_tokens} tokens of {num_reqs} "
                "requests: advance() feeds back one token a request, after a decode step"
            )
        block_size, end = self.cache.block_size, self.end_of_context(inputs)
        live = (inputs.context_lens > 0).int()
        inputs.input_ids.copy_(tokens * live)
        inputs.positions.add_(live).clamp_(max=end - 1)
        inputs.context_lens.add_(live).clamp_(max=end)
        positions = inputs.positions.long()
        blocks = inputs.block_table.gather(1, (positions // block_size)[:, None])[:, 0]
        inputs.slot_mapping.copy_(blocks * block_size + positions % block_size)

    def next_step(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """`head`, then `advance` by what it sampled: logits (R, V) and tokens (R,) int32."""
        logits, tokens = self.head(hidden, inputs, sample)
        self.advance(inputs, tokens)
        return logits, tokens

    def end_of_context(self, inputs: StepInputs) -> int:
        """Tokens that a request can have: the model's limit, or that of its blocks if less."""
        room = inputs.block_table.shape[1] * self.cache.block_size
        return min(room, self.config.max_position_embeddings)

    def decode(
        self, inputs: StepInputs, attention: Attention, steps: int, sample: Sampler = greedy
    ) -> Tensor:
        """`steps` decode steps without the host: body and `next_step`, again and again.

        Returns the tokens of each step, (steps, R) int32, and leaves in `inputs` those of the step
        after the last. `attention` must cover the context of the last step.
        """
        written = []
        for _ in range(steps):
            _, tokens = self.next_step(self.body(inputs, attention), inputs, sample)
            written.append(tokens)
        return torch.stack(written)

    def _summed(self, x: Tensor) -> Tensor:
        """x, of which each of several ranks has a part."""
        return self.weights.ranks.sum(x) if self.weights.ranks else x

    def _mlp(self, x: Tensor, layer: LayerWeights) -> Tensor:
        if (e := self.config.experts) and layer.router is not None:
            weights, ids = experts.route(x, layer.router, e)
            gate_up = layer.gate_up.view(e.count, 2 * e.width, -1)
            compute = experts.grouped if experts.can_group(x) else experts.masked
            return compute(x, gate_up, layer.down.view(e.count, -1, e.width), weights, ids)
        gate, up = functional.linear(x, layer.gate_up).chunk(2, dim=-1)
        return functional.linear(functional.silu(gate) * up, layer.down)

    def _layers_with_cache(self) -> Iterator[tuple[LayerWeights, Tensor, Tensor]]:
        return zip(self.weights.layers, self.cache.keys, self.cache.values, strict=True)

    def _norm(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.config.rms_norm_eps)

    def _qkv(self, normed: Tensor, layer: LayerWeights) -> tuple[Tensor, Tensor, Tensor]:
        """q (T, heads, D), k and v (T, kv_heads, D), before RoPE."""
        c = self.config
        qkv = functional.linear(normed, layer.qkv, layer.qkv_bias).view(len(normed), -1, c.head_dim)
        q, k, v = torch.split(qkv, [c.num_heads, c.num_kv_heads, c.num_kv_heads], dim=1)
        if layer.q_norm is not None and layer.k_norm is not None:
            q, k = self._norm(q, layer.q_norm), self._norm(k, layer.k_norm)
        return q, k, v


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x / sqrt(mean(x²) + eps) × weight over the last axis (Zhang & Sennrich, arXiv 1910.07467), in
    float32 and rounded before the weight comes in, as transformers does."""
    wide = x.float()
    scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * scale).to(x.dtype) * weight


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """RoPE on halves, as Hugging Face stores them. x (T, heads, D), cos and sin (T, 1, D/2)."""
    left, right = x.float().chunk(2, dim=-1)
    turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
    return turned.to(x.dtype)


def rotary_tables(config: ModelConfig, device: torch.device) -> tuple[Tensor, Tensor]:
    """cos and sin of position × frequency, each (max_position, D / 2) float32."""
    positions = torch.arange(config.max_position_embeddings, dtype=torch.float32, device=device)
    frequencies = torch.tensor(config.rope_frequencies(), dtype=torch.float32, device=device)
    angles = torch.outer(positions, frequencies)
    return angles.cos(), angles.sin()
