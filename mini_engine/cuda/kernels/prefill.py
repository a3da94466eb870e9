"""Causal attention of prompts, chunks of prompts and decodes over the paged cache: FlashAttention.

    out[t] = softmax(q[t] kᵀ / √D) v,  over the keys up to the token's own position

In:  q (T, q) rotated: the tokens of request 0, then those of request 1, ...; query_lens (R,): how
     many tokens each request has in this step, 0 for a padded one; context_lens (R,): its whole
     context, these tokens included; block_table, caches as in attention.py.
Out: out (T, q). Rows beyond the last token are padding and stay as they are.

A program walks over the keys in tiles with a running softmax (Dao et al. 2022, arXiv 2205.14135,
and 2023, arXiv 2307.08691). It owns 128 **rows** of one request and one KV head: a row is one query
head of one token, and the heads that share the KV head stand side by side. So a chunk of a few
tokens reads its keys once and not once a query head.

Tiles of keys that every row sees need no mask and come first; only those on the diagonal have one,
and the walk stops there. The longest walks start first, so that no wave waits for them at its end.
Which request a program serves it finds out by itself, so the grid depends on the shapes alone: a
graph may hold it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.paged import LOWEST, Heads, attention_reference

LOG2_E = tl.constexpr(1.4426950408889634)  # exp(x) = 2^(x · log2 e): the card computes powers of 2
REQUESTS = 256  # up to so many, all batches share one compiled kernel


@triton.jit(do_not_specialize=["num_reqs"])
def prefill_kernel(
    out, q, k_cache, v_cache, block_table, query_lens, context_lens, scale, table_stride,
    num_reqs, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr, REQS: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr,
    STAGES: tl.constexpr, LAST_STAGES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (KV head, tile of rows of any request). REQS: a power of two, num_reqs or more."""
    pdl_release(PDL)
    head, tile = tl.program_id(0), tl.program_id(1)
    pdl_wait(PDL)
    # Which request this tile belongs to: the first one whose tiles, counted through, go beyond it.
    # Each program adds them up, so no kernel before this one has to, and the grid may be frozen.
    every = tl.arange(0, REQS)
    lens = tl.load(query_lens + every, mask=every < num_reqs, other=0, cache_modifier=".cg")
    tiles = (lens * GROUP + ROWS - 1) // ROWS
    request = tl.sum((tl.cumsum(tiles, axis=0) <= tile).to(tl.int32), axis=0)
    if request >= num_reqs:
        return  # the grid has room for the worst way to share out the tokens
    # Its own tiles, the last first.
    first_token = tl.sum(tl.where(every < request, lens, 0), axis=0).to(tl.int64)
    from_last = tile - tl.sum(tl.where(every < request, tiles, 0), axis=0)
    query_len = tl.load(query_lens + request, cache_modifier=".cg")
    context = tl.load(context_lens + request, cache_modifier=".cg")
    cached = context - query_len
    first_row = (tl.cdiv(query_len * GROUP, ROWS) - 1 - from_last) * ROWS
    # A row is one query head of one token; the heads of the group stand side by side.
    row = first_row + tl.arange(0, ROWS)
    token = row // GROUP
    at = ((first_token + token) * KV_HEADS + head) * GROUP + row % GROUP
    at = at[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    real = (token < query_len)[:, None]
    queries = tl.load(q + at, mask=real, other=0.0, cache_modifier=".cg")
    m = tl.full((ROWS,), LOWEST, tl.float32)
    l = tl.zeros((ROWS,), tl.float32)
    acc = tl.zeros((ROWS, HEAD_DIM), tl.float32)
    # Whole tiles of keys that the first row sees already, and so all of them; then up to the last
    # row's own position.
    seen_by_all = (cached + first_row // GROUP + 1) // TILE * TILE
    end = tl.minimum(context, cached + (first_row + ROWS - 1) // GROUP + 1)
    table = block_table + request.to(tl.int64) * table_stride
    k_cache, v_cache = k_cache + head * HEAD_DIM, v_cache + head * HEAD_DIM
    scale = scale * LOG2_E
    m, l, acc = walk(
        m, l, acc, queries, cached + token, 0, seen_by_all, k_cache, v_cache, table, scale,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, False, STAGES,
    )  # fmt: skip
    m, l, acc = walk(
        m, l, acc, queries, cached + token, seen_by_all, end, k_cache, v_cache, table, scale,
        KV_HEADS, HEAD_DIM, BLOCK_SIZE, TILE, True, LAST_STAGES,
    )  # fmt: skip
    result = acc / l[:, None]  # divided once, at the end
    tl.store(out + at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def walk(
    m, l, acc, queries, position, first, last, k_cache, v_cache, table, scale,
    KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, TILE: tl.constexpr,
    DIAGONAL: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Take in the keys first to last - 1: returns m, l and acc with them, of which m counts in
    powers of two. A key beyond the last is read as the last: what the cache holds there, NaN
    perhaps, is never touched. The blocks of the next tile are looked up one tile ahead, so that its
    keys are on their way (cp.async) while this one is multiplied."""
    near = tl.minimum(first + tl.arange(0, TILE), last - 1)
    block = tl.load(table + near // BLOCK_SIZE, mask=near >= first, other=0)
    for start in tl.range(first, last, TILE, num_stages=STAGES):
        key = start + tl.arange(0, TILE)
        near = tl.minimum(key, last - 1) if DIAGONAL else key
        slot = block.to(tl.int64) * BLOCK_SIZE + near % BLOCK_SIZE
        # of the next tile: its keys may leave as soon as the pipeline has room for them
        block = tl.load(table + tl.minimum(key + TILE, last - 1) // BLOCK_SIZE)
        at = slot[:, None] * (KV_HEADS * HEAD_DIM) + tl.arange(0, HEAD_DIM)[None, :]
        keys = tl.load(k_cache + at, cache_modifier=".cg")
        scores = tl.dot(queries, tl.trans(keys), input_precision="ieee")
        if DIAGONAL:
            scores = tl.where(key[None, :] <= position[:, None], scores, LOWEST)
        # The running softmax (paged.py), in powers of 2: one multiplication a score fewer.
        m_new = tl.maximum(m, tl.max(scores, axis=1) * scale)
        weights = tl.exp2(scores * scale - m_new[:, None])
        keep = tl.exp2(m - m_new)
        l = l * keep + tl.sum(weights, axis=1)
        values = tl.load(v_cache + at, cache_modifier=".cg")
        acc = tl.dot(weights.to(values.dtype), values, acc * keep[:, None], input_precision="ieee")
        m = m_new
    return m, l, acc


def tile_options(head_dim: int, element_size: int, capability: int) -> dict[str, int]:
    """Rows, keys a tile and warps of a program; tiles of keys that are in flight or in use. With
    more than one stage in the second walk ptxas makes the asynchronous products (wgmma, sm_90) wait
    for each other; with fewer than two it spills where there are none (A100, RTX 30 to 50)."""
    small = head_dim > 128 or element_size > 2  # it must fit 64 KB of shared memory
    rows, tile, warps = (32, 16, 4) if small else (128, 64, 8)
    narrow = capability in (86, 89) or capability >= 120  # 99 KB of shared memory a program
    if not small and head_dim > 64 and narrow:
        tile = 32  # 64 keys of 128 numbers would take 96 KB
    last_stages = 1 if 90 <= capability < 120 else 2
    return {"ROWS": rows, "TILE": tile, "num_warps": warps, "STAGES": 3, "LAST_STAGES": last_stages}


def num_tiles(num_tokens: int, num_reqs: int, group_size: int, rows: int) -> int:
    """Tiles of rows that suffice, however the tokens are shared out among the requests."""
    return min(num_tokens, num_tokens * group_size // rows + num_reqs)


@torch.library.custom_op("launch_bound::prefill_attention", mutates_args=("out",))
def prefill_attention(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor,
    query_lens: Tensor, context_lens: Tensor, pdl: bool = False,
) -> None:  # fmt: skip
    """Shapes as at the top of the file."""
    heads = Heads.of(q, k_cache)
    num_reqs = len(query_lens)
    check_shape("out", out, tuple(q.shape))
    if not runs_triton(q):
        attention_reference(out, q, k_cache, v_cache, block_table, query_lens, context_lens)
        return
    major, minor = torch.cuda.get_device_capability(q.device) if q.is_cuda else (9, 0)
    options = tile_options(heads.head_dim, q.element_size(), 10 * major + minor)
    tiles = num_tiles(len(q), num_reqs, heads.group_size, options["ROWS"])
    prefill_kernel[(heads.num_kv_heads, tiles)](
        out, q, k_cache, v_cache, block_table, query_lens, context_lens, heads.head_dim**-0.5,
        block_table.stride(0), num_reqs, **heads.constants, **options,
        REQS=max(REQUESTS, triton.next_power_of_2(num_reqs)), **launch_options(pdl, q.device),
    )  # fmt: skip
