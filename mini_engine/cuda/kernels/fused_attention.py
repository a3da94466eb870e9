"""Decode attention in one kernel: q and k normed and rotated, K and V stored, attention, combine.

    rope.py, then attention.py, then its combine, as one: two boundaries less a layer.

In:  qkv (R, q + 2kv), one token a request; cos, sin (max_position, D/2) float32; block_table
     (R, max_blocks) and context_lens (R,) int32, the current token included, so that its position
     is context_len - 1 and its slot stands in the block_table; the gains of q and k, or None.
     counters (R, kv_heads) int32, all zero before the first launch, left zero by every launch; one
     serves all layers.
Out: out (R, q); the current K and V in k_cache, v_cache (num_blocks, block_size, kv_heads, D).
     A row with context_len 0 is padding: it gets zeros and stores nothing.

**Current K and V.** Every program makes its request's current K and V itself, in registers, and
puts them in place where a token is the current one; split 0 alone stores them. So no program reads
what another writes. Rows of the cache at or beyond the current position are dropped by `tl.where`,
whatever stands there (0 · NaN would be NaN).

**Past K and V above the wait.** Split s owns the tiles s, s + splits, ...: where its first tile
begins does not depend on the context length, so it is loaded above `pdl_wait`, through the block
table. That is right under two conditions. Nothing in the step writes the block table. And one
kernel of every step is launched without PDL (the embedding lookup, an op of torch), so that all
writes of the step before have ended before this step's second kernel starts. Beyond a request's
last block the table must hold valid blocks (0, the null block, is one).

**The combine** is done by the program that arrives last: see `combine_if_last` in paged.py.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.attention import decode_reference
from mini_engine.cuda.kernels.launch import (
    check_shape,
    launch_options,
    pdl_release,
    pdl_wait,
    runs_triton,
)
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    Heads,
    cache_rows,
    combine_if_last,
    new_parts,
    online_softmax,
    store_part,
)
from mini_engine.cuda.kernels.rope import check_rotary, has_gains, head_norm, rope_reference

TILE = 16  # keys of a tile: with 32, one warp of head_dim 128 spills
MAX_SPLITS = 32  # parts of a head that the combine holds in one warp's registers


@triton.jit
def load_keys(
    k_cache, v_cache, row, inside, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr
):
    """Both halves of K (tile, D/2) and V (tile, D) of some rows of the cache, zeros outside."""
    half: tl.constexpr = HEAD_DIM // 2
    at = ((row * KV_HEADS + kv_head) * HEAD_DIM)[:, None]
    pair, d = tl.arange(0, half)[None, :], tl.arange(0, HEAD_DIM)[None, :]
    left = tl.load(k_cache + at + pair, mask=inside[:, None], other=0.0)
    right = tl.load(k_cache + at + half + pair, mask=inside[:, None], other=0.0)
    return left, right, tl.load(v_cache + at + d, mask=inside[:, None], other=0.0)


@triton.jit
def turn(left, right, gains, c, s, eps, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr):
    """A head, or rows of heads, in float32 halves: normed and rotated."""
    if QK_NORM:
        left, right = head_norm(left, right, gains[0], gains[1], eps, HEAD_DIM)
    return left * c - right * s, right * c + left * s


@triton.jit
def attend(query, tile, current, token, position, scale, state):
    """One tile more. query, tile, current: (left, right) and values; state: online_softmax's."""
    is_current, is_past = (token == position)[:, None], (token < position)[:, None]
    left = tl.where(is_current, current[0][None, :], tile[0])
    right = tl.where(is_current, current[1][None, :], tile[1])
    past = tl.where(is_past, tile[2], tl.zeros_like(tile[2]))
    values = tl.where(is_current, current[2][None, :], past)
    scores = tl.dot(query[0], tl.trans(left), input_precision="ieee")
    scores = tl.dot(query[1], tl.trans(right), scores, input_precision="ieee") * scale
    valid = (token <= position)[None, :]
    return online_softmax(scores, valid, values, state[0], state[1], state[2])


@triton.jit
def fused_attention_kernel(
    out,
    k_cache,
    v_cache,
    counters,
    sums,
    stats,
    qkv,
    block_table,
    context_lens,
    cos,
    sin,
    q_gain,
    k_gain,
    eps,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    QK_NORM: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a request, KV head and split."""
    pdl_release(PDL)
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = HEAD_DIM // 2
    kind = k_cache.dtype.element_ty
    pair, d = tl.arange(0, half), tl.arange(0, HEAD_DIM)
    table = block_table + request * table_stride
    token = split * TILE + tl.arange(0, TILE)
    mapped = token < table_stride * BLOCK_SIZE
    row = cache_rows(table, token, mapped, BLOCK_SIZE)
    left, right, values = load_keys(k_cache, v_cache, row, mapped, kv_head, KV_HEADS, HEAD_DIM)
    q_gains = ()
    k_gains = ()
    if QK_NORM:
        q_gains = (tl.load(q_gain + pair)[None, :], tl.load(q_gain + half + pair)[None, :])
        k_gains = (tl.load(k_gain + pair), tl.load(k_gain + half + pair))
    pdl_wait(PDL)
    position = tl.load(context_lens + request, cache_modifier=".cg") - 1
    angle = tl.maximum(position, 0).to(tl.int64) * half + pair
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    member = tl.arange(0, PADDED_GROUP)
    live = (member < GROUP)[:, None]
    heads_of_q: tl.constexpr = KV_HEADS * GROUP
    start = qkv + request * (heads_of_q + 2 * KV_HEADS) * HEAD_DIM
    q_at = start + (kv_head * GROUP + member)[:, None] * HEAD_DIM + pair[None, :]
    q_left = tl.load(q_at, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    q_right = tl.load(q_at + half, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    k_at = start + (heads_of_q + kv_head) * HEAD_DIM
    k_left = tl.load(k_at + pair, cache_modifier=".cg").to(tl.float32)
    k_right = tl.load(k_at + half + pair, cache_modifier=".cg").to(tl.float32)
    v = tl.load(k_at + KV_HEADS * HEAD_DIM + d, cache_modifier=".cg")
    q_left, q_right = turn(q_left, q_right, q_gains, c[None, :], s[None, :], eps, HEAD_DIM, QK_NORM)
    k_left, k_right = turn(k_left, k_right, k_gains, c, s, eps, HEAD_DIM, QK_NORM)
    query = (q_left.to(kind), q_right.to(kind))
    current = (k_left.to(kind), k_right.to(kind), v)
    if (split == 0) & (position >= 0):
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        to = (slot * KV_HEADS + kv_head) * HEAD_DIM
        tl.store(k_cache + to + pair, current[0])
        tl.store(k_cache + to + half + pair, current[1])
        tl.store(v_cache + to + d, v)
    best = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    total = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    for first in tl.range(split * TILE, position + 1, SPLITS * TILE, num_stages=1):
        token = first + tl.arange(0, TILE)
        state = attend(
            query, (left, right, values), current, token, position, scale, (best, total, acc)
        )
        best, total, acc = state
        token += SPLITS * TILE  # of a bucket's context nothing is left: these loads are masked off
        row = cache_rows(table, token, token < position, BLOCK_SIZE)
        left, right, values = load_keys(
            k_cache, v_cache, row, token < position, kv_head, KV_HEADS, HEAD_DIM
        )
    head = (request * KV_HEADS + kv_head) * GROUP
    part = (head + member) * SPLITS + split
    store_part(sums, stats, part, member < GROUP, best, total, acc, HEAD_DIM)
    counter = counters + request * KV_HEADS + kv_head
    combine_if_last(out, sums, stats, counter, head, GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS)


@torch.library.custom_op(
    "launch_bound::rope_kv_write_attention",
    mutates_args=("out", "k_cache", "v_cache", "counters"),
)
def rope_kv_write_attention(
    out: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    counters: Tensor,
    qkv: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    splits: int,
    q_gain: Tensor | None = None,
    k_gain: Tensor | None = None,
    eps: float = 1e-6,
    pdl: bool = False,
) -> None:
    """Shapes as at the top of the file. `splits`: from `num_splits`, a constant of the graph.

    Raises ValueError for shapes that do not fit, more than MAX_SPLITS splits, and refused PDL.
    """
    heads = Heads.of(out, k_cache, v_cache)
    heads.check_tables(len(out), block_table, context_lens)
    check_shape("qkv", qkv, (len(out), heads.qkv_size))
    check_shape("counters", counters, (len(out), heads.num_kv_heads))
    check_rotary(heads, cos, sin)
    qk_norm = has_gains(heads, q_gain, k_gain)
    if not 1 <= splits <= MAX_SPLITS:
        raise ValueError(f"splits is {splits}, expected 1 to {MAX_SPLITS}")
    if not runs_triton(out):
        out.copy_(
            fused_reference(
                k_cache, v_cache, qkv, block_table, context_lens, cos, sin, q_gain, k_gain, eps
            )
        )
        return
    sums, stats = new_parts(len(out), heads, splits, out.device)
    fused_attention_kernel[(len(out), heads.num_kv_heads, splits)](
        out, k_cache, v_cache, counters, sums, stats, qkv, block_table, context_lens,
        cos, sin, q_gain, k_gain, eps, scale=heads.head_dim**-0.5,
        table_stride=block_table.stride(0), **heads.constants,
        PADDED_GROUP=heads.padded_group, SPLITS=splits, TILE=TILE,
        PADDED_SPLITS=triton.next_power_of_2(splits), QK_NORM=qk_norm,
        num_warps=1, **launch_options(pdl, out),
    )  # fmt: skip


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    """Splits for a graph that serves contexts up to `max_context`: one tile each if that is no more
    than MAX_SPLITS and makes no more than `num_programs` (say four for each multiprocessor)."""
    wanted = num_programs // (num_reqs * num_kv_heads)
    return max(1, min(wanted, MAX_SPLITS, -(-max_context // TILE)))


def fused_reference(
    k_cache: Tensor,
    v_cache: Tensor,
    qkv: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    q_gain: Tensor | None,
    k_gain: Tensor | None,
    eps: float,
) -> Tensor:
    """rope.py's reference, then attention.py's: out (R, q). Stores into the caches."""
    block_size, kv_heads, head_dim = k_cache.shape[1:]
    q_size = qkv.shape[1] - 2 * kv_heads * head_dim
    heads = Heads(q_size // head_dim, kv_heads, head_dim, block_size)
    positions = (context_lens.long() - 1).clamp(min=0)
    q, k, v = rope_reference(heads, qkv, positions, cos, sin, q_gain, k_gain, eps)
    block = block_table.gather(1, (positions // block_size).unsqueeze(1)).squeeze(1).long()
    slot, live = block * block_size + positions % block_size, context_lens > 0
    k_cache.flatten(0, 1)[slot[live]] = k[live]
    v_cache.flatten(0, 1)[slot[live]] = v[live]
    return decode_reference(q.flatten(1), k_cache, v_cache, block_table, context_lens)
