"""Causal attention of prompts and chunks of prompts, over the paged cache: FlashAttention.

    out[t] = softmax(q[t] kᵀ / √D) v,  over the keys up to the token's own position

In:  q (T, q) rotated: the tokens of request 0, then those of request 1, ...; query_lens (R,): how
     many tokens each request has in this step, 0 for a padded one; context_lens (R,): its whole
     context, these tokens included; block_table (R, max_blocks); the caches (num_blocks,
     block_size, kv_heads, D), which already hold the keys and values of this step.
Out: out (T, q). Rows beyond the last token are padding and stay as they are.

A program takes TILE_Q tokens of one request and one query head, and walks over the keys in tiles
with a running softmax, so that no score reaches memory (Dao et al. 2022, arXiv 2205.14135, and
2023, arXiv 2307.08691). It stops at the last key that its last token may see, which halves the work
of a long prompt. A batch of prompts and decodes is one launch: a decode is a chunk of one token.

Bytes: as in attention.py. Programs of other tiles find the keys and values in L2.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.paged import LOWEST, Heads, cache_rows, gather, online_softmax

TILE_Q = 64  # tokens a program
TILE_K = 32  # keys a tile: with 64 and head_dim 128, sm_80 spills


@triton.jit
def prefill_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_table,
    query_lens,
    context_lens,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    REQS: tl.constexpr,
    TILE_Q: tl.constexpr,
    TILE_K: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (tile of the longest chunk, query head, request). REQS: the power of two at or above
    the number of requests."""
    pdl_release(PDL)
    start, head, request = tl.program_id(0) * TILE_Q, tl.program_id(1), tl.program_id(2)
    d = tl.arange(0, HEAD_DIM)
    pdl_wait(PDL)
    query_len = tl.load(query_lens + request, cache_modifier=".cg")
    if start >= query_len:
        return
    context = tl.load(context_lens + request, cache_modifier=".cg")
    other = tl.arange(0, REQS)
    before = tl.load(query_lens + other, mask=other < request, other=0, cache_modifier=".cg")
    before = tl.sum(before, axis=0)
    token = start + tl.arange(0, TILE_Q)
    real = token < query_len
    position = context - query_len + token
    row = (before + token).to(tl.int64) * KV_HEADS * GROUP + head
    at = row[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(q + at, mask=real[:, None], other=0.0, cache_modifier=".cg")
    m = tl.full((TILE_Q,), LOWEST, tl.float32)
    l = tl.zeros((TILE_Q,), tl.float32)
    acc = tl.zeros((TILE_Q, HEAD_DIM), tl.float32)
    end = tl.minimum(context, context - query_len + start + TILE_Q)
    for first in range(0, end, TILE_K):
        key = first + tl.arange(0, TILE_K)
        inside = key < end
        slot = cache_rows(block_table + request * table_stride, key, inside, BLOCK_SIZE)
        at_kv = (slot * KV_HEADS + head // GROUP)[:, None] * HEAD_DIM + d[None, :]
        keys = tl.load(k_cache + at_kv, mask=inside[:, None], other=0.0)
        values = tl.load(v_cache + at_kv, mask=inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        valid = key[None, :] <= position[:, None]
        m, l, acc = online_softmax(scores, valid, values, m, l, acc)
    result = (acc / l[:, None]).to(out.dtype.element_ty)
    tl.store(out + at, result, mask=real[:, None])


@torch.library.custom_op("launch_bound::prefill_attention", mutates_args=("out",))
def prefill_attention(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
    max_query_len: int,
    pdl: bool = False,
) -> None:
    """Shapes as at the top of the file. `max_query_len`: the longest chunk, known to the host; the
    tail of a longer one would not be computed."""
    heads = Heads.of(q, k_cache, v_cache)
    num_reqs = len(query_lens)
    heads.check_tables(num_reqs, block_table, context_lens)
    check_shape("query_lens", query_lens, (num_reqs,))
    check_shape("out", out, tuple(q.shape))
    if not runs_triton(q):
        prefill_reference(out, q, k_cache, v_cache, block_table, query_lens, context_lens)
        return
    prefill_kernel[(triton.cdiv(max_query_len, TILE_Q), heads.num_heads, num_reqs)](
        out, q, k_cache, v_cache, block_table, query_lens, context_lens,
        scale=heads.head_dim**-0.5, table_stride=block_table.stride(0), **heads.constants,
        REQS=triton.next_power_of_2(num_reqs), TILE_Q=TILE_Q, TILE_K=TILE_K,
        num_warps=4, **launch_options(pdl, q.device),
    )  # fmt: skip


def prefill_reference(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    query_lens: Tensor,
    context_lens: Tensor,
) -> None:
    """Request by request, in float32, rounded once at the end."""
    heads = Heads.of(q, k_cache, v_cache)
    first = 0
    for r, (chunk, context) in enumerate(
        zip(query_lens.tolist(), context_lens.tolist(), strict=True)
    ):
        if chunk == 0:
            continue
        keys, values = (gather(c, block_table[r], context).float() for c in (k_cache, v_cache))
        query = q[first : first + chunk].float()
        query = query.view(chunk, heads.num_kv_heads, heads.group_size, heads.head_dim)
        scores = torch.einsum("thgd,nhd->hgtn", query, keys) * heads.head_dim**-0.5
        seen = torch.ones(chunk, context, dtype=torch.bool, device=q.device)
        scores.masked_fill_(~seen.tril(diagonal=context - chunk), -torch.inf)
        rows = torch.einsum("hgtn,nhd->thgd", scores.softmax(dim=-1), values)
        out[first : first + chunk] = rows.flatten(1).to(q.dtype)
        first += chunk
