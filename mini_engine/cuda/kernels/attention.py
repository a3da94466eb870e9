"""Paged decode attention: one query a request, its context split over many programs.

    out = softmax(q kᵀ / √D) v,  over the first context_lens[r] keys of request r

In:  q (R, q) rotated; k_cache, v_cache (num_blocks, block_size, kv_heads, D); block_table
     (R, max_blocks) and context_lens (R,) int32, the current token included. A padded row has
     context_len 0: it gets zeros, and no cache row is read for it.
     counters (R, kv_heads) int32, all zero; every launch leaves them zero, so one buffer serves all
     layers.
Out: out (R, q).

This is flash-decoding (Dao et al. 2023, https://pytorch.org/blog/flash-decoding). A program for
each (request, KV head, split) takes the whole group of query heads, padded to 16 rows for the
tensor cores, and leaves a partial (paged.py). The program that arrives last combines the partials.

Split s owns the tiles s, s + splits, s + 2·splits, ... of the context. So the number of splits may
be frozen in a graph and any context is still computed, the work is even, and a row's result does
not depend on the rows beside it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    Heads,
    attention_reference,
    cache_rows,
    combine_if_last,
    new_partials,
    online_softmax,
    store_partial,
)

TILE = 32  # keys a tile: 8 KB of K at head_dim 128
MAX_SPLITS = 64  # partials of a head that the combine holds in registers


@triton.jit
def decode_split_kernel(
    out, sums, stats, counters, q, k_cache, v_cache, block_table, context_lens, scale,
    table_stride, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr, TILE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (request, KV head, split): the query heads of that KV head, and the tiles split,
    split + SPLITS, split + 2 · SPLITS, ... of TILE keys, as far as the context goes.

    A row of q or out has KV_HEADS · GROUP heads, and head h reads KV head h // GROUP. `tl.dot`
    needs at least 16 rows, so the tile has PADDED_GROUP of them, and rows from GROUP on are not
    real. The key at position t of a request lies in row `cache_rows(...)` of k_cache, and a row has
    KV_HEADS heads; table_stride leads from one request's row of block_table to the next. Scores
    are q · k · scale, multiplied and scaled in float32. `store_partial` takes the result as partial
    head · SPLITS + split, heads counted over all requests; a split without tiles leaves LOWEST, 0
    and zeros. Then the program that arrives last combines the group (`combine_if_last`; one counter
    for each request and KV head). Programs run in any order. Each reads its queries, and the keys
    and values of its tiles, once, and nothing beyond them; q and context_lens past L1 (".cg"),
    since the step wrote them. `pdl_release(PDL)` comes first, and no load stands above
    `pdl_wait(PDL)`.
    """
    pdl_release(PDL)
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    # The query heads of one KV head, as rows of one tile: its keys are read once for all of them.
    member = tl.arange(0, PADDED_GROUP)
    d = tl.arange(0, HEAD_DIM)
    live = member < GROUP
    head = (request * KV_HEADS + kv_head) * GROUP + member
    pdl_wait(PDL)
    context = tl.load(context_lens + request, cache_modifier=".cg")
    at = head[:, None] * HEAD_DIM + d[None, :]
    queries = tl.load(q + at, mask=live[:, None], other=0.0, cache_modifier=".cg")
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    # Every SPLITS-th tile of the context: whatever its length, the splits have equal shares.
    for start in range(split * TILE, context, SPLITS * TILE):
        token = start + tl.arange(0, TILE)
        inside = token < context
        row = cache_rows(block_table + request * table_stride, token, inside, BLOCK_SIZE)
        at_kv = (row * KV_HEADS + kv_head)[:, None] * HEAD_DIM + d[None, :]
        keys = tl.load(k_cache + at_kv, mask=inside[:, None], other=0.0)
        values = tl.load(v_cache + at_kv, mask=inside[:, None], other=0.0)
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee") * scale
        m, l, acc = online_softmax(scores, inside[None, :], values, m, l, acc)
    store_partial(sums, stats, head * SPLITS + split, live, m, l, acc, HEAD_DIM)
    counter = counters + request * KV_HEADS + kv_head
    first = (request * KV_HEADS + kv_head) * GROUP
    combine_if_last(out, sums, stats, counter, first, GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS)


@torch.library.custom_op("launch_bound::decode_attention", mutates_args=("out", "counters"))
def decode_attention(
    out: Tensor, counters: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor,
    context_lens: Tensor, splits: int, pdl: bool = False,
) -> None:  # fmt: skip
    """Shapes as at the top of the file. `splits`: from `num_splits`, a constant of the graph."""
    heads = Heads.of(q, k_cache)
    check_shape("out", out, tuple(q.shape))
    check_shape("counters", counters, (len(q), heads.num_kv_heads))
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits is {splits}, expected 1 to {MAX_SPLITS}")
    if not runs_triton(q):
        out.copy_(decode_reference(q, k_cache, v_cache, block_table, context_lens))
        return
    decode_split_kernel[(len(q), heads.num_kv_heads, splits)](
        out, *new_partials(len(q), heads, splits, q.device), counters, q, k_cache, v_cache,
        block_table, context_lens, scale=heads.head_dim**-0.5,
        table_stride=block_table.stride(0), **heads.constants,
        PADDED_GROUP=heads.padded_group, SPLITS=splits, TILE=TILE,
        PADDED_SPLITS=triton.next_power_of_2(splits), num_warps=4, **launch_options(pdl, q.device),
    )  # fmt: skip


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    """Splits for a graph that serves contexts up to `max_context`: the fewest that make
    `num_programs` programs (two to four for each multiprocessor), but no more than the context has
    tiles, and no more than MAX_SPLITS. At least one."""
    wanted = -(-num_programs // (num_reqs * num_kv_heads))
    return max(1, min(wanted, MAX_SPLITS, -(-max_context // TILE)))


def decode_reference(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor, context_lens: Tensor
) -> Tensor:
    """`attention_reference` of one token a request."""
    out, ones = torch.zeros_like(q), torch.ones_like(context_lens)
    attention_reference(out, q, k_cache, v_cache, block_table, ones, context_lens)
    return out
