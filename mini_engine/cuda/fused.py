"""The decode step in Triton kernels: nine a layer, or five.

`FusedModel` is a `Model`: the same in, the same out, fewer launches between.

    nine   norm · QKV · RoPE and KV write · attention · O · norm · gate/up · SiLU·mul · down
    five   norm+QKV · RoPE, KV write and attention · O+residual · norm+gate/up+SiLU·mul ·
           down+residual

A step of up to 16 requests that all decode runs in these kernels. Everything else (prompts, larger
batches) falls back to `Model`, because there a library's matrix product is better. On a CPU each
kernel's PyTorch reference runs in its place, so the wiring is tested without a GPU.

With `pdl` each kernel starts while the one before it drains (programmatic dependent launch, sm_90
and newer): `mini_engine/cuda/kernels/launch.py` says what that requires. The embedding lookup, the
first op of a step, is PyTorch's and waits as usual: the full boundary that the kernels rely on.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mini_engine.cuda.attention import Attention, DecodeAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kernels import attention as decode
from mini_engine.cuda.kernels import fused_attention as fused
from mini_engine.cuda.kernels.activation import silu_mul
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS
from mini_engine.cuda.kernels.head import norm_lm_head, num_programs
from mini_engine.cuda.kernels.launch import sm_count
from mini_engine.cuda.kernels.linear import linear, linear_add, norm_gate_up_silu_mul, norm_linear
from mini_engine.cuda.kernels.norm import add_rms_norm, rms_norm
from mini_engine.cuda.kernels.pick import pick_and_advance, pick_tokens
from mini_engine.cuda.kernels.plans import BASE, plan_of
from mini_engine.cuda.kernels.rope import rope_kv_write
from mini_engine.cuda.kernels.skinny import MAX_SKINNY_TOKENS
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.cuda.weights import Weights


class FusedModel(Model):
    """`Model`, with decode steps in Triton kernels."""

    def __init__(
        self,
        weights: Weights,
        cache: KVCache,
        *,
        kernels_per_layer: Literal[9, 5],
        pdl: bool = False,
        plan: str = BASE,
    ) -> None:
        super().__init__(weights, cache)
        if kernels_per_layer not in (9, 5):
            raise ValueError(f"kernels_per_layer is {kernels_per_layer}, expected 9 or 5")
        self.layers = self._five if kernels_per_layer == 5 else self._nine
        self.pdl, self.sm_count = pdl, sm_count(weights.embed.device)
        plan_of(plan)  # raises for a name that is none
        self.plan = plan
        # How many splits have arrived; every launch leaves zeros, so all layers share it.
        shape = (MAX_SKINNY_TOKENS, self.config.num_kv_heads)
        self.counters = torch.zeros(shape, dtype=torch.int32, device=weights.embed.device)

    def body(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """Hidden states after the last layer, (T, H). Writes K and V of every token."""
        rows = len(inputs.input_ids)
        if not isinstance(attention, DecodeAttention) or rows > MAX_SKINNY_TOKENS:
            return super().body(inputs, attention)
        residual = functional.embedding(inputs.input_ids, self.weights.embed)
        table = inputs.block_table[:, : attention.max_blocks]
        self.layers(residual, inputs, table, self.counters[:rows])
        return residual

    def head(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """Logits of each request's last token (R, V), and the next token of each (R,) int32."""
        if not self._fits_head(hidden, inputs, sample):
            return super().head(hidden, inputs, sample)
        logits, values, indices, tokens = self._scores(hidden)
        pick_tokens(tokens, values, indices, self.pdl)
        return logits, tokens

    def next_step(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """`head` and `advance` in two kernels. Logits (R, V) and tokens (R,) int32."""
        if not self._fits_head(hidden, inputs, sample):
            return super().next_step(hidden, inputs, sample)
        logits, values, indices, tokens = self._scores(hidden)
        pick_and_advance(
            tokens, inputs.input_ids, inputs.positions, inputs.context_lens, inputs.slot_mapping,
            values, indices, inputs.block_table, self.cache.block_size,
            self.end_of_context(inputs), self.pdl,
        )  # fmt: skip
        return logits, tokens

    def _fits_head(self, hidden: Tensor, inputs: StepInputs, sample: Sampler) -> bool:
        """Is it a greedy decode step that the head's kernel takes?"""
        return sample is greedy and len(inputs.last_rows) == len(hidden) <= MAX_GEMV_TOKENS

    def _scores(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Logits (R, V), the head's partials (R, P), and room for the tokens (R,) int32."""
        rows, norm_weight, weight = len(hidden), self.weights.final_norm, self.weights.lm_head
        vocab, width = weight.shape
        partials = num_programs(vocab, width, self.sm_count)
        logits = hidden.new_empty(rows, vocab, dtype=torch.float32)
        values = hidden.new_empty(rows, partials, dtype=torch.float32)
        indices = hidden.new_empty(rows, partials, dtype=torch.int32)
        eps = self.config.rms_norm_eps
        norm_lm_head(values, indices, hidden, norm_weight, weight, eps, logits, self.pdl, self.plan)
        return logits, values, indices, hidden.new_empty(rows, dtype=torch.int32)

    def _five(self, residual: Tensor, inputs: StepInputs, table: Tensor, counters: Tensor) -> None:
        c, eps, pdl, rows = self.config, self.config.rms_norm_eps, self.pdl, len(residual)
        plan, context = self.plan, table.shape[1] * self.cache.block_size
        splits = fused.num_splits(context, rows, c.num_kv_heads, 4 * self.sm_count)
        qkv = residual.new_empty(rows, c.q_size + 2 * c.kv_size)
        attended = residual.new_empty(rows, c.q_size)
        activated = residual.new_empty(rows, c.intermediate_size)
        for layer, keys, values in self._layers_with_cache():
            norm_linear(qkv, residual, layer.input_norm, layer.qkv, eps, layer.qkv_bias, pdl, plan)
            fused.rope_kv_write_attention(
                attended, keys, values, counters, qkv, table, inputs.context_lens,
                self.cos, self.sin, splits, layer.q_norm, layer.k_norm, eps, pdl, plan,
            )  # fmt: skip
            linear_add(residual, attended, layer.o, pdl, plan)
            norm_gate_up_silu_mul(
                activated, residual, layer.post_norm, layer.gate_up, eps, pdl, plan
            )
            linear_add(residual, activated, layer.down, pdl, plan)

    def _nine(self, residual: Tensor, inputs: StepInputs, table: Tensor, counters: Tensor) -> None:
        c, eps, pdl, rows = self.config, self.config.rms_norm_eps, self.pdl, len(residual)
        context = table.shape[1] * self.cache.block_size
        splits = decode.num_splits(context, rows, c.num_kv_heads, 4 * self.sm_count)
        normed, out = torch.empty_like(residual), torch.empty_like(residual)
        qkv = residual.new_empty(rows, c.q_size + 2 * c.kv_size)
        q, attended = residual.new_empty(2, rows, c.q_size)
        gate_up = residual.new_empty(rows, 2 * c.intermediate_size)
        activated = residual.new_empty(rows, c.intermediate_size)
        for index, (layer, keys, values) in enumerate(self._layers_with_cache()):
            if index:
                add_rms_norm(normed, residual, out, layer.input_norm, eps, pdl)
            else:
                rms_norm(normed, residual, layer.input_norm, eps, pdl)
            linear(qkv, normed, layer.qkv, layer.qkv_bias, pdl)
            rope_kv_write(
                q, keys, values, qkv, inputs.positions, inputs.slot_mapping,
                self.cos, self.sin, layer.q_norm, layer.k_norm, eps, pdl,
            )  # fmt: skip
            decode.decode_attention(
                attended, counters, q, keys, values, table, inputs.context_lens, splits, pdl
            )
            linear(out, attended, layer.o, None, pdl)
            add_rms_norm(normed, residual, out, layer.post_norm, eps, pdl)
            linear(gate_up, normed, layer.gate_up, None, pdl)
            silu_mul(activated, gate_up, pdl)
            linear(out, activated, layer.down, None, pdl)
        residual.add_(out)
