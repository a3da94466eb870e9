"""Decode attention in one kernel: q and k normed and rotated, K and V stored, attention, combine.
rope.py, then attention.py, with one boundary fewer in each layer.

In:  qkv (R, q + 2kv), one token a request; cos, sin (max_position, D/2) float32; block_table
     (R, max_blocks) and context_lens (R,) int32, the current token included: its position is
     context_len - 1, and its slot is found in block_table; q_norm, k_norm (D,): the weights of
     the norms of q and k, or None; counters as in attention.py.
Out: out (R, q); the current K and V in k_cache, v_cache (num_blocks, block_size, kv_heads, D).
     A row with context_len 0 is padding: it gets zeros and stores nothing.

**The current token is a split of its own.** There is a program for each (request, KV head, split):

    splits 0 ... SPLITS - 2   tiles of the past, s, s + (SPLITS - 1), ...: they need q and no new k
    split SPLITS - 1          the current token: makes k, stores k and v, leaves (q · k, 1, v)

So no program reads what another one writes, and a tile of the past is in shared memory when the
kernel before ends. Where the tiles cover the room (ONE_TILE), there is no loop.

**What is read above the wait, and why it may be.** Past K and V, through the block table: nothing
in a step writes the table or a past row. The length, and with it the angles and the slot. The last
kernel of a step writes context_lens, after its own wait; and between it and the next step's
attention stands a kernel that is launched without PDL (the embedding lookup, an op of torch): a
full boundary, which covers the rows of K and V that the step before has written, too. Beyond a
request's last block the table must hold valid blocks (0, the null block, is one).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.attention import decode_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    Heads,
    cache_rows,
    combine_if_last,
    new_partials,
    online_softmax,
    store_partial,
)
from mini_engine.cuda.kernels.rope import rope_reference

TILE = 64  # keys a tile: 16 KB of K at head_dim 128
WARPS = 8
MIN_SPLITS, MAX_SPLITS = 2, 32  # the past and the current token; what the combine can hold


# ---------------------------------------------------------------- the parts


@triton.jit
def factors(c, s, norm, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr):
    """Four rows (1, D/2): what both halves of a head are multiplied by for the new left half, and
    for the new right half, the norm's weight included; its 1 / rms is one factor a head."""
    if QK_NORM:
        half: tl.constexpr = HEAD_DIM // 2
        pair = tl.arange(0, half)[None, :]
        left, right = tl.load(norm + pair), tl.load(norm + half + pair)
        left, right = left.to(tl.float32), right.to(tl.float32)
        return c * left, -s * right, s * left, c * right
    else:
        return c, -s, s, c


@triton.jit
def turned_heads(at, live, by, eps, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr):
    """Load, norm and rotate heads: both halves (rows, D/2), float32. at: (rows, D/2) pointers to
    left halves; live: which rows to load, zeros for the others; by: from `factors`."""
    half: tl.constexpr = HEAD_DIM // 2
    left = tl.load(at, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    right = tl.load(at + half, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    new_left = left * by[0] + right * by[1]
    new_right = left * by[2] + right * by[3]
    if QK_NORM:
        # the sum runs beside the rotation, which does not wait for it
        total = tl.sum(left * left + right * right, axis=1, keep_dims=True)
        inverse = tl.rsqrt(total / HEAD_DIM + eps)
        new_left, new_right = new_left * inverse, new_right * inverse
    return new_left, new_right


@triton.jit
def attend_past(query, tile, past, scale, m, l, acc):
    """query: both halves; tile: (left, right, values)."""
    scores = tl.dot(query[0], tl.trans(tile[0]), input_precision="ieee")
    scores = tl.dot(query[1], tl.trans(tile[1]), scores, input_precision="ieee") * scale
    return online_softmax(scores, past[None, :], tile[2], m, l, acc)


@triton.jit
def past_split(
    sums, stats, k_cache, v_cache, heads_of_q, table, kv_head, head, split, position, tile, by,
    eps, scale, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr,
    ONE_TILE: tl.constexpr, QK_NORM: tl.constexpr,
):  # fmt: skip
    """The group's queries against the tiles of one split, of which the first is loaded."""
    member = tl.arange(0, PADDED_GROUP)
    live = member < GROUP
    # The queries of the group, padded with zeros to the 16 rows of a tensor core's tile. Every
    # program of the KV head makes them again: that is cheaper than to wait for one that does.
    at = heads_of_q + member[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM // 2)[None, :]
    left, right = turned_heads(at, live[:, None], by, eps, HEAD_DIM, QK_NORM)
    wide = heads_of_q.dtype.element_ty
    query = (left.to(wide), right.to(wide))
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    # The tile that came while the kernel before was ending
    token = split * TILE + tl.arange(0, TILE)
    m, l, acc = attend_past(query, tile, token < position, scale, m, l, acc)
    if not ONE_TILE:
        # A context of more tiles than there are splits: the split's next ones, each loaded here
        step: tl.constexpr = (SPLITS - 1) * TILE
        for first in tl.range(split * TILE + step, position, step, num_stages=1):
            token = first + tl.arange(0, TILE)
            past = token < position
            row = cache_rows(table, token, past, BLOCK_SIZE)
            more = load_tile(k_cache, v_cache, row, past, kv_head, KV_HEADS, HEAD_DIM)
            m, l, acc = attend_past(query, more, past, scale, m, l, acc)
    partial = (head + member) * SPLITS + split
    store_partial(sums, stats, partial, live, m, l, acc, HEAD_DIM)


@triton.jit
def load_tile(k_cache, v_cache, row, past, kv_head, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr):
    """Both halves of K (tile, D/2) and V (tile, D); zeros where not past."""
    half: tl.constexpr = HEAD_DIM // 2
    at = ((row * KV_HEADS + kv_head) * HEAD_DIM)[:, None]
    pair, d = tl.arange(0, half)[None, :], tl.arange(0, HEAD_DIM)[None, :]
    left, right = k_cache + at + pair, k_cache + at + half + pair
    return (
        tl.load(left, mask=past[:, None], other=0.0),
        tl.load(right, mask=past[:, None], other=0.0),
        tl.load(v_cache + at + d, mask=past[:, None], other=0.0),
    )


@triton.jit
def current_split(
    sums, stats, k_cache, v_cache, heads_of_q, head_of_k, to, head, position, by_q, by_k, eps,
    scale, KV_HEADS: tl.constexpr, GROUP: tl.constexpr, ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, QK_NORM: tl.constexpr,
):  # fmt: skip
    """The current token: its K and V to `to` in the cache, and its score with each query. k and v
    are repeated for each row of q, so that the same threads hold them, and there are at least as
    many rows as warps. A padded row (position -1) leaves the partial of no keys."""
    half: tl.constexpr = HEAD_DIM // 2
    row, pair, d = tl.arange(0, ROWS)[:, None], tl.arange(0, half)[None, :], tl.arange(0, HEAD_DIM)
    live = row < GROUP
    # q, k and v: three loads that leave together, and none waits for another
    left, right = turned_heads(
        heads_of_q + row * HEAD_DIM + pair, live, by_q, eps, HEAD_DIM, QK_NORM
    )
    k_left, k_right = turned_heads(head_of_k + row * 0 + pair, live, by_k, eps, HEAD_DIM, QK_NORM)
    at = head_of_k + KV_HEADS * HEAD_DIM + row * 0 + d[None, :]
    v = tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
    # Into the cache rounded; from here on they are seen as they are stored.
    wide = heads_of_q.dtype.element_ty
    k_left, k_right = k_left.to(wide), k_right.to(wide)
    real = position >= 0
    first = (row == 0) & real
    tl.store(k_cache + to + row * 0 + pair, k_left, mask=first)
    tl.store(k_cache + to + half + row * 0 + pair, k_right, mask=first)
    tl.store(v_cache + to + row * 0 + d[None, :], v, mask=first)
    # One key: its score is its maximum, its weight is 1, and its sum is v.
    products = left.to(wide).to(tl.float32) * k_left.to(tl.float32)
    products += right.to(wide).to(tl.float32) * k_right.to(tl.float32)
    m = tl.where(real, tl.sum(products, axis=1) * scale, LOWEST)
    l = tl.where(real, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(real, v.to(tl.float32), 0.0)
    member = tl.arange(0, ROWS)
    partial = (head + member) * SPLITS + SPLITS - 1
    store_partial(sums, stats, partial, member < GROUP, m, l, acc, HEAD_DIM)


# ---------------------------------------------------------------- the kernel


@triton.jit
def fused_attention_kernel(
    out, k_cache, v_cache, counters, sums, stats, qkv, block_table, context_lens,
    cos, sin, q_norm, k_norm, eps, scale, table_stride,
    KV_HEADS: tl.constexpr, GROUP: tl.constexpr, PADDED_GROUP: tl.constexpr,
    CURRENT_ROWS: tl.constexpr, HEAD_DIM: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr, PADDED_SPLITS: tl.constexpr, TILE: tl.constexpr, ONE_TILE: tl.constexpr,
    QK_NORM: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (request, KV head, split)."""
    # The next kernel (O) may take free slots at once: its weights stand above its own wait.
    pdl_release(PDL)
    request, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    half: tl.constexpr = HEAD_DIM // 2
    is_current = split == SPLITS - 1
    table = block_table + request * table_stride
    position = tl.load(context_lens + request) - 1
    # The split's first tile of past K and V, on its way before anything is computed. The current
    # token's program loads nothing.
    token = split * TILE + tl.arange(0, TILE)
    past = (token < position) & (split < SPLITS - 1)
    row = cache_rows(table, token, past, BLOCK_SIZE)
    tile = load_tile(k_cache, v_cache, row, past, kv_head, KV_HEADS, HEAD_DIM)
    # Angles and norm weights, multiplied into four factors for a head of q and four for one of k.
    place = tl.maximum(position, 0)
    angle = place.to(tl.int64) * half + tl.arange(0, half)[None, :]
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    by_q = factors(c, s, q_norm, HEAD_DIM, QK_NORM)
    by_k = factors(c, s, k_norm, HEAD_DIM, QK_NORM)
    # Where the current token goes.
    slot = tl.load(table + place // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + place % BLOCK_SIZE
    pair = request * KV_HEADS + kv_head
    # From here on: qkv, which the kernel before wrote, and everything that this one writes.
    pdl_wait(PDL)
    start = qkv + request * (KV_HEADS * (GROUP + 2)) * HEAD_DIM
    heads_of_q = start + kv_head * GROUP * HEAD_DIM
    if is_current:
        head_of_k = start + (KV_HEADS * GROUP + kv_head) * HEAD_DIM
        to = (slot * KV_HEADS + kv_head) * HEAD_DIM
        current_split(
            sums, stats, k_cache, v_cache, heads_of_q, head_of_k, to, pair * GROUP, position,
            by_q, by_k, eps, scale, KV_HEADS, GROUP, CURRENT_ROWS, HEAD_DIM, SPLITS, QK_NORM,
        )  # fmt: skip
    else:
        past_split(
            sums, stats, k_cache, v_cache, heads_of_q, table, kv_head, pair * GROUP, split,
            position, tile, by_q, eps, scale, KV_HEADS, GROUP, PADDED_GROUP, HEAD_DIM,
            BLOCK_SIZE, SPLITS, TILE, ONE_TILE, QK_NORM,
        )  # fmt: skip
    # The program that arrives last adds the splits up.
    combine_if_last(
        out, sums, stats, counters + pair, pair * GROUP, GROUP, HEAD_DIM, SPLITS, PADDED_SPLITS
    )


# ---------------------------------------------------------------- what the model calls


@torch.library.custom_op(
    "launch_bound::rope_kv_write_attention", mutates_args=("out", "k_cache", "v_cache", "counters")
)
def rope_kv_write_attention(
    out: Tensor, k_cache: Tensor, v_cache: Tensor, counters: Tensor, qkv: Tensor,
    block_table: Tensor, context_lens: Tensor, cos: Tensor, sin: Tensor, splits: int,
    q_norm: Tensor | None = None, k_norm: Tensor | None = None, eps: float = 1e-6,
    pdl: bool = False,
) -> None:  # fmt: skip
    """Shapes as at the top of the file. `splits`: from `num_splits`, a constant of the graph."""
    heads = Heads.of(out, k_cache)
    check_shape("qkv", qkv, (len(out), heads.qkv_size))
    check_shape("counters", counters, (len(out), heads.num_kv_heads))
    if not MIN_SPLITS <= splits <= MAX_SPLITS:
        raise ValueError(f"splits is {splits}, expected {MIN_SPLITS} to {MAX_SPLITS}")
    if not runs_triton(out):  # rope.py's reference, then attention.py's
        positions = (context_lens.long() - 1).clamp(min=0)
        q, k, v = rope_reference(heads, qkv, positions, cos, sin, q_norm, k_norm, eps)
        block = block_table.gather(1, (positions // heads.block_size).unsqueeze(1)).squeeze(1)
        slot = block.long() * heads.block_size + positions % heads.block_size
        live = context_lens > 0
        for cache, new in ((k_cache, k[live]), (v_cache, v[live])):
            cache.flatten(0, 1)[slot[live]] = new
        out.copy_(decode_reference(q.flatten(1), k_cache, v_cache, block_table, context_lens))
        return
    room = block_table.shape[1] * heads.block_size
    fused_attention_kernel[(len(out), heads.num_kv_heads, splits)](
        out, k_cache, v_cache, counters,
        *new_partials(len(out), heads, splits, out.device), qkv, block_table, context_lens,
        cos, sin, q_norm, k_norm, eps, scale=heads.head_dim**-0.5,
        table_stride=block_table.stride(0), QK_NORM=q_norm is not None,
        **attention_options(heads, splits, room), **launch_options(pdl, out.device),
    )  # fmt: skip


def attention_options(heads: Heads, splits: int, room: int) -> dict[str, int | bool]:
    """The constants that follow from the shapes, and `num_warps`. room: tokens that the block table
    has blocks for. CURRENT_ROWS: of the current token's program."""
    return heads.constants | {
        "PADDED_GROUP": heads.padded_group,
        "CURRENT_ROWS": max(triton.next_power_of_2(heads.group_size), WARPS), "SPLITS": splits,
        "PADDED_SPLITS": triton.next_power_of_2(splits), "TILE": TILE,
        "ONE_TILE": (splits - 1) * TILE >= room - 1, "num_warps": WARPS,
    }  # fmt: skip


def num_splits(max_context: int, num_reqs: int, num_kv_heads: int, num_programs: int) -> int:
    """Splits for a graph that serves contexts up to `max_context`: one for each tile of the past
    and one for the current token, at most MAX_SPLITS, and at most `num_programs` programs in all.
    """
    tiles = -(-(max_context - 1) // TILE) + 1
    wanted = num_programs // (num_reqs * num_kv_heads)
    return max(MIN_SPLITS, min(wanted, MAX_SPLITS, tiles))
