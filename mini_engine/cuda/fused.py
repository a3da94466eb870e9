"""The step in Triton kernels: nine a layer, or five.

    nine   norm · QKV · RoPE and KV write · attention · O · norm · gate/up · SiLU·mul · down
    five   norm+QKV · RoPE, KV write and attention · O+residual · norm+gate/up+SiLU·mul ·
           down+residual

A step of up to 4 requests that all decode runs in these kernels. From 5 requests on, and in prompts
and mixed batches, it is always nine, with a library's products (cuBLAS on a GPU) between kernels of
ours.

With `pdl` each kernel starts while the one before it drains (kernels/launch.py). The embedding
lookup is PyTorch's and waits as usual: the full boundary that the kernels rely on.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from mini_engine.cuda.attention import Attend, Attention, DecodeAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kernels import attention as decode
from mini_engine.cuda.kernels import fused_attention as fused
from mini_engine.cuda.kernels.activation import silu_mul
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS
from mini_engine.cuda.kernels.head import norm_lm_head, num_programs
from mini_engine.cuda.kernels.launch import sm_count
from mini_engine.cuda.kernels.linear import (
    library_linear,
    linear,
    linear_add,
    norm_gate_up_silu_mul,
    norm_linear,
)
from mini_engine.cuda.kernels.norm import add_rms_norm, rms_norm
from mini_engine.cuda.kernels.pick import pick_and_advance, pick_tokens
from mini_engine.cuda.kernels.prefill import prefill_attention
from mini_engine.cuda.kernels.rope import rope_kv_write
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.sampling import Sampler, greedy
from mini_engine.cuda.weights import Weights
from mini_engine.engine.batch import ScheduledBatch

ROOM = 1024  # requests of a step, or more where the cache has blocks for more


@dataclass(frozen=True)
class PagedAttention:
    """Prompts, chunks and decodes in one launch a layer. Rows beyond the last query are zeros."""

    pdl: bool = False

    def begin(self, inputs: StepInputs) -> Attend:
        outs: list[Tensor] = []  # one for all layers: what the kernel leaves alone stays zero

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            if not outs:
                outs.append(torch.zeros_like(q))
            prefill_attention(
                outs[0].flatten(1), q.flatten(1), keys, values, inputs.block_table,
                inputs.query_lens, inputs.context_lens, self.pdl,
            )  # fmt: skip
            return outs[0]

        return attend


class FusedModel(Model):
    """`Model`, with its steps in Triton kernels."""

    def __init__(
        self, weights: Weights, cache: KVCache, *, kernels_per_layer: Literal[9, 5],
        pdl: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(weights, cache)
        device = weights.embed.device
        self.pdl, self.kernels_per_layer, self.sm_count = pdl, kernels_per_layer, sm_count(device)
        # How many splits have arrived; every launch leaves zeros, so all layers share it. As large
        # as any batch, 32 KB with 8 KV heads: graphs hold its address, so it must never grow.
        shape = (max(ROOM, len(cache.keys[0])), self.config.num_kv_heads)
        self.counters = torch.zeros(shape, dtype=torch.int32, device=device)
        # The scores of an argmax that has no rival: `_partials` of a library's logits.
        self.zeros = torch.zeros(shape[0], 1, device=device)

    def kernels_of(self, batch: int) -> Literal[0, 5, 9]:  # of a layer, in a decode step
        return 9 if batch > MAX_GEMV_TOKENS else self.kernels_per_layer

    def body(self, inputs: StepInputs, attention: Attention) -> Tensor:
        """As in `Model`."""
        rows = len(inputs.input_ids)
        residual = functional.embedding(inputs.input_ids, self.weights.embed)
        if not isinstance(attention, DecodeAttention):
            self._nine(residual, inputs, attention.begin(inputs), library_linear)
            return residual
        table, counters = inputs.block_table[:, : attention.max_blocks], self.counters[:rows]
        if self.kernels_of(rows) == 5:
            self._five(residual, inputs, table, counters)
        else:
            product = library_linear if rows > MAX_GEMV_TOKENS else linear
            self._nine(residual, inputs, self._decodes(inputs, table, counters), product)
        return residual

    def live_attention(self, batch: ScheduledBatch) -> Attention:  # noqa: ARG002 (as `Model`)
        return PagedAttention(self.pdl)

    def captured_attention(self, max_blocks: int) -> Attention:  # noqa: ARG002 (as `Model`)
        return PagedAttention(self.pdl)

    def head(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """As in `Model`, whose ops compute a head that samples."""
        if sample is not greedy:
            return super().head(hidden, inputs, sample)
        rows = len(inputs.last_rows)
        # One row is the last one. As many rows as requests may still be a mixed step, padded.
        last = hidden if len(hidden) == rows == 1 else hidden.index_select(0, inputs.last_rows)
        logits, values, indices = self._partials(last)
        tokens = torch.empty_like(inputs.last_rows)
        pick_tokens(tokens, values, indices, self.pdl)
        return logits, tokens

    def next_step(
        self, hidden: Tensor, inputs: StepInputs, sample: Sampler = greedy
    ) -> tuple[Tensor, Tensor]:
        """`head` and `advance`, which its last kernel does."""
        if len(hidden) != len(inputs.last_rows) or sample is not greedy:
            return super().next_step(hidden, inputs, sample)
        logits, values, indices = self._partials(hidden)
        tokens = torch.empty_like(inputs.context_lens)
        pick_and_advance(
            tokens, inputs.input_ids, inputs.positions, inputs.context_lens, inputs.slot_mapping,
            values, indices, inputs.block_table, self.cache.block_size,
            self.end_of_context(inputs), self.pdl,
        )  # fmt: skip
        return logits, tokens

    def _partials(self, hidden: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits (R, V), and the partials (R, P) to pick tokens from: values and indices."""
        rows, norm_weight, weight = len(hidden), self.weights.final_norm, self.weights.lm_head
        vocab, width = weight.shape
        eps, pdl = self.config.rms_norm_eps, self.pdl
        if rows > MAX_GEMV_TOKENS:
            normed = torch.empty_like(hidden)
            rms_norm(normed, hidden, norm_weight, eps, pdl)
            logits = functional.linear(normed, weight)
            # one partial a row, the argmax of logits in the dtype of the weights
            return logits, self.zeros[:rows], logits.argmax(-1).to(torch.int32)[:, None]
        logits = hidden.new_empty(rows, vocab, dtype=torch.float32)
        partials = num_programs(vocab, width, self.sm_count)
        values = hidden.new_empty(rows, partials, dtype=torch.float32)
        indices = torch.empty_like(values, dtype=torch.int32)
        norm_lm_head(values, indices, logits, hidden, norm_weight, weight, eps, pdl)
        return logits, values, indices

    def _five(self, residual: Tensor, inputs: StepInputs, table: Tensor, counters: Tensor) -> None:
        c, eps, pdl, rows = self.config, self.config.rms_norm_eps, self.pdl, len(residual)
        context = table.shape[1] * self.cache.block_size
        splits = fused.num_splits(context, rows, c.num_kv_heads, 4 * self.sm_count)
        qkv = residual.new_empty(rows, c.q_size + 2 * c.kv_size)
        attended = residual.new_empty(rows, c.q_size)
        activated = residual.new_empty(rows, c.intermediate_size)
        for layer, keys, values in self._layers_with_cache():
            norm_linear(qkv, residual, layer.input_norm, layer.qkv, eps, layer.qkv_bias, pdl)
            fused.rope_kv_write_attention(
                attended, keys, values, counters, qkv, table, inputs.context_lens,
                self.cos, self.sin, splits, layer.q_norm, layer.k_norm, eps, pdl,
            )  # fmt: skip
            linear_add(residual, attended, layer.o, pdl)
            norm_gate_up_silu_mul(activated, residual, layer.post_norm, layer.gate_up, eps, pdl)
            linear_add(residual, activated, layer.down, pdl)

    def _decodes(self, inputs: StepInputs, table: Tensor, counters: Tensor) -> Attend:
        """One token a request, each context split over many programs."""
        rows, kv_heads = len(counters), self.config.num_kv_heads
        context = table.shape[1] * self.cache.block_size
        splits = decode.num_splits(context, rows, kv_heads, 4 * self.sm_count)
        out = counters.new_empty(rows, self.config.q_size, dtype=self.weights.embed.dtype)

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            decode.decode_attention(
                out, counters, q.flatten(1), keys, values, table, inputs.context_lens, splits,
                self.pdl,
            )  # fmt: skip
            return out

        return attend

    def _nine(
        self, residual: Tensor, inputs: StepInputs, attend: Attend, product: Callable[..., None]
    ) -> None:
        c, eps, pdl, rows = self.config, self.config.rms_norm_eps, self.pdl, len(residual)
        normed, out = torch.empty_like(residual), torch.empty_like(residual)
        qkv = residual.new_empty(rows, c.q_size + 2 * c.kv_size)
        q = residual.new_empty(rows, c.q_size)
        gate_up = residual.new_empty(rows, 2 * c.intermediate_size)
        activated = residual.new_empty(rows, c.intermediate_size)
        for index, (layer, keys, values) in enumerate(self._layers_with_cache()):
            if index:
                add_rms_norm(normed, residual, out, layer.input_norm, eps, pdl)
            else:
                rms_norm(normed, residual, layer.input_norm, eps, pdl)
            product(qkv, normed, layer.qkv, layer.qkv_bias, pdl)
            rope_kv_write(
                q, keys, values, qkv, inputs.positions, inputs.slot_mapping,
                self.cos, self.sin, layer.q_norm, layer.k_norm, eps, pdl,
            )  # fmt: skip
            heads = q.view(rows, c.num_heads, c.head_dim)
            attended = attend(heads, keys, values).flatten(1)
            product(out, attended, layer.o, None, pdl)
            add_rms_norm(normed, residual, out, layer.post_norm, eps, pdl)
            product(gate_up, normed, layer.gate_up, None, pdl)
            silu_mul(activated, gate_up, pdl)
            product(out, activated, layer.down, None, pdl)
        residual.add_(out)
