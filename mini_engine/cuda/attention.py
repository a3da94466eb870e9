"""Paged causal attention in plain PyTorch, three ways; a step is given the one that fits it.

In:  the step's `StepInputs`; then for each layer q (T, heads, D) and the caches of K and V, which
     already hold this step's tokens.
Out: attended values (T, heads, D), one row for each token.

    attend = attention.begin(inputs)   # what all layers share, once a step
    out = attend(q, keys, values)      # once a layer

`DecodeAttention` and `RaggedAttention` have static shapes, so they can be captured: they gather
max_blocks blocks, whatever the context. What lies beyond a context is dropped by selection, never
multiplied with zero: it may be NaN, and 0 × NaN is NaN.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from mini_engine.cuda.inputs import StepInputs

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]


class Attention(Protocol):
    """A way to attend. Kernels and graph runners bring their own."""

    def begin(self, inputs: StepInputs) -> Attend:
        """Prepare a step; the result is called once a layer, with q (T, heads, D) and keys and
        values (num_blocks, block_size, kv_heads, D)."""
        ...


@dataclass(frozen=True)
class DecodeAttention:
    """One token a request."""

    max_blocks: int
    block_size: int

    def begin(self, inputs: StepInputs) -> Attend:
        num_tokens, num_reqs = len(inputs.input_ids), len(inputs.context_lens)
        if num_tokens != num_reqs:
            raise ValueError(f"{num_tokens} tokens of {num_reqs} requests: expected one each")
        table = inputs.block_table[:, : self.max_blocks]
        return _gathering(table, inputs.context_lens, self.block_size)


@dataclass(frozen=True)
class RaggedAttention:
    """Any mix of prefill chunks and decodes, so that one full graph can take a mixed batch. Each
    token gathers its max_blocks blocks on its own, so it needs much memory: for small rungs."""

    max_blocks: int
    block_size: int

    def begin(self, inputs: StepInputs) -> Attend:
        ends = inputs.query_lens.cumsum(0)  # (R,) one past each request's last row
        rows = torch.arange(len(inputs.positions), device=ends.device)
        request = (rows[:, None] >= ends).sum(1)  # (T,) R for padded rows
        table = inputs.block_table[:, : self.max_blocks]
        table = table.index_select(0, request.clamp(max=len(ends) - 1))
        seen = (inputs.positions + 1).masked_fill(rows >= ends[-1], 0)
        return _gathering(table, seen, self.block_size)


@dataclass(frozen=True)
class HostAttention:
    """Any batch, by lengths that the host knows: decodes together, then chunk by chunk."""

    query_lens: tuple[int, ...]  # (R,) of the requests in the batch, without padding
    context_lens: tuple[int, ...]  # (R,) this step's tokens included
    block_size: int

    def begin(self, inputs: StepInputs) -> Attend:
        num_reqs = len(self.query_lens)
        # Decodes come first; one token behind a longer chunk is a chunk of its own.
        decodes = next((i for i, n in enumerate(self.query_lens) if n != 1), num_reqs)
        together = None
        if decodes:
            table = inputs.block_table[:decodes, : self._blocks(max(self.context_lens[:decodes]))]
            together = _gathering(table, inputs.context_lens[:decodes], self.block_size)

        def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
            out = torch.zeros_like(q)
            if together:
                out[:decodes] = together(q[:decodes], keys, values)
            row = decodes
            for request in range(decodes, num_reqs):
                chunk = slice(row, row := row + self.query_lens[request])
                context_len = self.context_lens[request]
                blocks = inputs.block_table[request, : self._blocks(context_len)]
                k, v = (
                    cache.index_select(0, blocks).flatten(0, 1)[:context_len]
                    for cache in (keys, values)
                )
                out[chunk] = _attend_chunk(q[chunk], k, v)
            return out

        return attend

    def _blocks(self, context_len: int) -> int:
        return -(-context_len // self.block_size)


def _gathering(table: Tensor, seen: Tensor, block_size: int) -> Attend:
    """Token t sees the first seen[t] keys of the blocks table[t]; padding sees none and gets 0.
    table (T, blocks), seen (T,) int32."""
    num_tokens, num_blocks = table.shape
    length = num_blocks * block_size
    blocks = table.reshape(-1)
    beyond = torch.arange(length, device=table.device) >= seen[:, None]  # (T, L)

    def attend(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        _, _, kv_heads, head_dim = keys.shape
        k, v = (
            cache.index_select(0, blocks).view(num_tokens, length, kv_heads, head_dim)
            for cache in (keys, values)
        )
        v = v.masked_fill(beyond[:, :, None, None], 0)
        grouped = q.view(num_tokens, kv_heads, -1, head_dim)  # heads that share a KV head
        scores = torch.matmul(grouped, k.permute(0, 2, 3, 1)) * head_dim**-0.5
        # The lowest number and not -inf: a row that sees nothing would be 0 / 0.
        scores = scores.masked_fill(beyond[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.float32).to(q.dtype)  # (T, kv_heads, group, L)
        return torch.matmul(weights, v.transpose(1, 2)).view(q.shape)

    return attend


def _attend_chunk(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The last n tokens of a context of c. q (n, heads, D); k, v (c, kv_heads, D)."""
    (query_len, heads, _), (context_len, kv_heads, _) = q.shape, k.shape
    # Repeating heads costs bytes, but every backend of scaled_dot_product_attention takes it; only
    # the slowest takes grouped heads with a mask.
    k, v = (x.repeat_interleave(heads // kv_heads, dim=1).transpose(0, 1)[None] for x in (k, v))
    mask = None
    if query_len not in (1, context_len):
        # Aligned at the end: query i stands at position context_len - query_len + i.
        ones = torch.ones(query_len, context_len, dtype=torch.bool, device=q.device)
        mask = ones.tril(context_len - query_len)
    out = functional.scaled_dot_product_attention(
        q.transpose(0, 1)[None], k, v, attn_mask=mask, is_causal=query_len == context_len
    )
    return out[0].transpose(0, 1)
