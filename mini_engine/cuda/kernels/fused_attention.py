"""Decode attention in one kernel: q and k normed and rotated, K and V stored, attention, combine.

    rope.py, then attention.py, in one kernel: one boundary fewer in each layer

In:  qkv (R, q + 2kv), one token a request; cos, sin (max_position, D/2) float32; block_table
     (R, max_blocks) and context_lens (R,) int32, the current token included, so that its position
     is context_len - 1 and its slot is found in block_table; q_norm, k_norm (D,): the weights of
     the norms of q and k, or None; counters and kv_scales as in attention.py.
Out: out (R, q); the current K and V in k_cache, v_cache (num_blocks, block_size, kv_heads, D).
     A row with context_len 0 is padding: it gets zeros and stores nothing.
     ValueError for heads narrower than MIN_HEAD_DIM, which attention.py takes.

Bytes: qkv in, out out, the current K and V stored, every past key and value read once.

**Current K and V.** Every program computes its request's current K and V itself, in registers, and
puts them in place where a token is the current one; only split 0 stores them. So no program reads
what another one writes. Rows of the cache from the current position on are dropped by `tl.where`,
whatever they hold (0 · NaN would be NaN). With a cache in fp8 the current token, too, is seen as
it is stored.

**Past K and V above the wait.** Split s owns the tiles s, s + splits, ... Where its first tile
begins does not depend on the context length, so it is loaded above `pdl_wait`, through the block
table. That is safe under two conditions. Nothing in the step writes the block table. And one kernel
of every step is launched without PDL (the embedding lookup, an op of torch), so all writes of the
previous step have ended before this step's second kernel starts. Beyond a request's last block the
table must hold valid blocks (0, the null block, is one).

`plan` names the alternatives to run (plans.py): tiles and warps, how the last program combines
(combine.py), the current token apart (apart_attention.py), and weights read ahead (ahead.py).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.ahead import ahead_options, read_ahead
from mini_engine.cuda.kernels.apart_attention import apart_attention_kernel
from mini_engine.cuda.kernels.attention import decode_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.combine import combine_group_if_last, fits_registers
from mini_engine.cuda.kernels.e4m3 import cached, head_scale, numbers
from mini_engine.cuda.kernels.fp8 import as_bytes, cast_like
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    Heads,
    cache_rows,
    load_keys,
    new_partials,
    online_softmax,
    store_partial,
)
from mini_engine.cuda.kernels.plans import BASE, KernelPlan, plan_of
from mini_engine.cuda.kernels.rope import check_rotary, has_qk_norm, head_norm, rope_reference

MIN_HEAD_DIM = 32  # products run over half a head, and `tl.dot` sums over 16 or more
MAX_SPLITS = 32  # partials of a head that the combine holds in one warp's registers


@triton.jit
def turn(left, right, weights, c, s, eps, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr):
    """Norm and rotate a head, or rows of heads, held as two float32 halves."""
    if QK_NORM:
        left, right = head_norm(left, right, weights[0], weights[1], eps, HEAD_DIM)
    return left * c - right * s, right * c + left * s


@triton.jit
def attend(query, tile, current, token, position, scale, state):
    """Take in one more tile. query: (left, right); tile (as it was loaded) and current: (left,
    right, values); state and result: (m, l, acc) of `online_softmax`."""
    kind: tl.constexpr = query[0].dtype
    is_current, is_past = (token == position)[:, None], (token < position)[:, None]
    left = tl.where(is_current, current[0][None, :], numbers(tile[0], kind))
    right = tl.where(is_current, current[1][None, :], numbers(tile[1], kind))
    past = numbers(tile[2], kind)
    past = tl.where(is_past, past, tl.zeros_like(past))
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
    kv_scales,
    counters,
    sums,
    stats,
    qkv,
    block_table,
    context_lens,
    cos,
    sin,
    q_norm,
    k_norm,
    ahead,
    eps,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    TOGETHER: tl.constexpr,
    QK_NORM: tl.constexpr,
    SHARE: tl.constexpr,
    SPANS: tl.constexpr,
    GAP: tl.constexpr,
    BULK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (request, KV head, split)."""
    pdl_release(PDL)
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = HEAD_DIM // 2
    kind = qkv.dtype.element_ty
    stored = k_cache.dtype.element_ty
    pair, d = tl.arange(0, half), tl.arange(0, HEAD_DIM)
    table = block_table + request * table_stride
    token = split * TILE + tl.arange(0, TILE)
    mapped = token < table_stride * BLOCK_SIZE
    row = cache_rows(table, token, mapped, BLOCK_SIZE)
    left, right, values = load_keys(k_cache, v_cache, row, mapped, kv_head, KV_HEADS, HEAD_DIM)
    q_weights = ()
    k_weights = ()
    if QK_NORM:
        q_weights = (tl.load(q_norm + pair)[None, :], tl.load(q_norm + half + pair)[None, :])
        k_weights = (tl.load(k_norm + pair), tl.load(k_norm + half + pair))
    k_scale, v_scale = head_scale(kv_scales, kv_head), head_scale(kv_scales, KV_HEADS + kv_head)
    program = (request * KV_HEADS + kv_head) * SPLITS + split
    read_ahead(ahead, program, SHARE, SPANS, GAP, BULK)
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
    q_left, q_right = turn(
        q_left, q_right, q_weights, c[None, :], s[None, :], eps, HEAD_DIM, QK_NORM
    )
    k_left, k_right = turn(k_left, k_right, k_weights, c, s, eps, HEAD_DIM, QK_NORM)
    query = (q_left.to(kind), q_right.to(kind))
    k_left = cached(k_left.to(kind), k_scale, stored)
    k_right = cached(k_right.to(kind), k_scale, stored)
    v = cached(v, v_scale, stored)
    current = (numbers(k_left, kind), numbers(k_right, kind), numbers(v, kind))
    if (split == 0) & (position >= 0):
        block = tl.load(table + position // BLOCK_SIZE).to(tl.int64)
        slot = block * BLOCK_SIZE + position % BLOCK_SIZE
        to = (slot * KV_HEADS + kv_head) * HEAD_DIM
        tl.store(k_cache + to + pair, k_left)
        tl.store(k_cache + to + half + pair, k_right)
        tl.store(v_cache + to + d, v)
    scale = scale * k_scale
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    for first in tl.range(split * TILE, position + 1, SPLITS * TILE, num_stages=1):
        token = first + tl.arange(0, TILE)
        tile, state = (left, right, values), (m, l, acc)
        m, l, acc = attend(query, tile, current, token, position, scale, state)
        token += SPLITS * TILE  # the next tile; beyond the context its loads are masked off
        row = cache_rows(table, token, token < position, BLOCK_SIZE)
        left, right, values = load_keys(
            k_cache, v_cache, row, token < position, kv_head, KV_HEADS, HEAD_DIM
        )
    head = (request * KV_HEADS + kv_head) * GROUP
    partial = (head + member) * SPLITS + split
    store_partial(sums, stats, partial, member < GROUP, m, l, acc * v_scale, HEAD_DIM)
    counter = counters + request * KV_HEADS + kv_head
    combine_group_if_last(
        out, sums, stats, counter, head, GROUP, ROWS, HEAD_DIM, SPLITS, PADDED_SPLITS, TOGETHER
    )


@torch.library.custom_op(
    "launch_bound::rope_kv_write_attention", mutates_args=("out", "k_cache", "v_cache", "counters")
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
    q_norm: Tensor | None = None,
    k_norm: Tensor | None = None,
    eps: float = 1e-6,
    pdl: bool = False,
    plan: str = BASE,
    ahead: Tensor | None = None,
    kv_scales: Tensor | None = None,
) -> None:
    """Shapes as at the top of the file. `splits`: from `num_splits` with the same plan, a constant
    of the graph. `ahead` (2I, K): the weight of gate and up, of which the plan's `prefetch` bytes
    come to L2 meanwhile, half of them from the first rows of gate and half from those of up."""
    chosen = plan_of(plan)
    heads = Heads.of(out, k_cache, v_cache, kv_scales)
    if heads.head_dim < MIN_HEAD_DIM:
        raise ValueError(
            f"head_dim {heads.head_dim}: the fused attention needs {MIN_HEAD_DIM} or more, because "
            "its products run over half a head; use nine kernels a layer"
        )
    heads.check_tables(len(out), block_table, context_lens)
    check_shape("qkv", qkv, (len(out), heads.qkv_size))
    check_shape("counters", counters, (len(out), heads.num_kv_heads))
    check_rotary(heads, cos, sin)
    qk_norm = has_qk_norm(heads, q_norm, k_norm)
    if not chosen.fewest_splits <= splits <= MAX_SPLITS:
        raise ValueError(f"splits is {splits}, expected {chosen.fewest_splits} to {MAX_SPLITS}")
    if chosen.current_apart and kv_scales is not None:
        raise ValueError(f"plan {plan!r} reads no cache in fp8: use {BASE!r}, or a cache in bf16")
    if not runs_triton(out):  # rope.py's reference, then attention.py's
        positions = (context_lens.long() - 1).clamp(min=0)
        q, k, v = rope_reference(heads, qkv, positions, cos, sin, q_norm, k_norm, eps)
        block = block_table.gather(1, (positions // heads.block_size).unsqueeze(1)).squeeze(1)
        slot = block.long() * heads.block_size + positions % heads.block_size
        live = context_lens > 0
        for which, (cache, new) in enumerate(((k_cache, k[live]), (v_cache, v[live]))):
            cache.flatten(0, 1)[slot[live]] = cast_like(new, kv_scales, which)
        q = q.flatten(1)
        out.copy_(decode_reference(q, k_cache, v_cache, block_table, context_lens, kv_scales))
        return
    grid = (len(out), heads.num_kv_heads, splits)
    room = block_table.shape[1] * heads.block_size
    options = attention_options(heads, splits, room, chosen)
    options |= ahead_options(ahead, chosen.prefetch, 2, math.prod(grid))
    kernel: Any = apart_attention_kernel if chosen.current_apart else fused_attention_kernel
    kernel[grid](
        out, as_bytes(k_cache), as_bytes(v_cache), *([] if chosen.current_apart else [kv_scales]),
        counters, *new_partials(len(out), heads, splits, out.device), qkv, block_table,
        context_lens, cos, sin, q_norm, k_norm, ahead if options["SHARE"] else None, eps,
        scale=heads.head_dim**-0.5, table_stride=block_table.stride(0), QK_NORM=qk_norm, **options,
        **launch_options(pdl, out.device),
    )  # fmt: skip


def attention_options(
    heads: Heads, splits: int, room: int, plan: KernelPlan
) -> dict[str, int | bool]:
    """The constants that follow from the shapes and the plan, and `num_warps`. room: tokens that
    the block table has blocks for."""
    rows = triton.next_power_of_2(heads.group_size)
    options = heads.constants | {
        "PADDED_GROUP": heads.padded_group,
        "ROWS": rows,
        "SPLITS": splits,
        "PADDED_SPLITS": triton.next_power_of_2(splits),
        "TILE": plan.attention_tile,
        "TOGETHER": plan.combine_together and fits_registers(heads, splits, plan.attention_warps),
        "num_warps": plan.attention_warps,
    }
    if plan.current_apart:
        covered = (splits - 1) * plan.attention_tile >= room - 1
        options |= {"ONE_TILE": covered, "CURRENT_ROWS": max(rows, plan.attention_warps)}
    return options


def num_splits(
    max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int, plan: str = BASE
) -> int:
    """Splits for a graph that serves contexts up to `max_context`: one for each tile (and one for
    the current token, where it is apart), but at most MAX_SPLITS, and at most `num_programs`
    programs in all (say four for each multiprocessor)."""
    chosen = plan_of(plan)
    apart = int(chosen.current_apart)
    tiles = -(-(max_context - apart) // chosen.attention_tile) + apart
    wanted = num_programs // (num_reqs * num_kv_heads)
    return max(chosen.fewest_splits, min(wanted, MAX_SPLITS, tiles))
