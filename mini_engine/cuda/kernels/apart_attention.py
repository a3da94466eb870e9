"""An alternative to the kernel of fused_attention.py: the current token is a split of its own.

    splits 0 ... SPLITS - 2   tiles of the past, s, s + (SPLITS - 1), ...: they need q and no new k
    split SPLITS - 1          the current token: makes k, stores k and v, leaves (q · k, 1, v)

In, out: as fused_attention.py, and bit for bit what it stores in the cache. Bytes: the same.

What it is for: fewer instructions, barriers and trips to memory between the wait and the count.

* A past tile is the past alone. So nothing has to be put in place of one of its rows after the
  wait, and it is already in shared memory, ordered for the tensor cores, when the wait ends.
* Where the tiles cover the room (ONE_TILE), there is no loop and no old maximum to rescale.
* The position, its angles and its slot are read above the wait, so no trip depends on another after
  it. Is that safe? The kernel that advances a step writes context_lens, the last of the step, after
  its own wait, so every kernel of that step has ended. And between it and the next step's attention
  stands a kernel that is launched without PDL (the embedding lookup), as past K and V need too.
* Angles and norm weights are multiplied above the wait; 1 / rms multiplies once, at the end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels.ahead import read_ahead
from mini_engine.cuda.kernels.combine import combine_group_if_last
from mini_engine.cuda.kernels.launch import pdl_release, pdl_wait
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    cache_rows,
    load_keys,
    online_softmax,
    store_partial,
)


@triton.jit
def factors(c, s, norm, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr):
    """Four rows (1, D/2): what left and right are multiplied by for the new left, and for the new
    right. RMSNorm's weight goes into them, its 1 / rms does not."""
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
        total = tl.sum(left * left + right * right, axis=1, keep_dims=True)
        inverse = tl.rsqrt(total / HEAD_DIM + eps)
        new_left, new_right = new_left * inverse, new_right * inverse
    return new_left, new_right


@triton.jit
def attend_past(query, tile, past, scale, m, l, acc):
    """Take in a tile of past keys. query: both halves; tile: (left, right, values)."""
    scores = tl.dot(query[0], tl.trans(tile[0]), input_precision="ieee")
    scores = tl.dot(query[1], tl.trans(tile[1]), scores, input_precision="ieee") * scale
    return online_softmax(scores, past[None, :], tile[2], m, l, acc)


@triton.jit
def past_split(
    sums,
    stats,
    k_cache,
    v_cache,
    heads_of_q,
    table,
    kv_head,
    head,
    split,
    position,
    tile,
    by,
    eps,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    PADDED_GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    ONE_TILE: tl.constexpr,
    QK_NORM: tl.constexpr,
):
    """The group's queries against the tiles of one split, of which the first is loaded."""
    member = tl.arange(0, PADDED_GROUP)
    live = member < GROUP
    at = heads_of_q + member[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM // 2)[None, :]
    left, right = turned_heads(at, live[:, None], by, eps, HEAD_DIM, QK_NORM)
    kind = k_cache.dtype.element_ty
    query = (left.to(kind), right.to(kind))
    m = tl.full((PADDED_GROUP,), LOWEST, tl.float32)
    l = tl.zeros((PADDED_GROUP,), tl.float32)
    acc = tl.zeros((PADDED_GROUP, HEAD_DIM), tl.float32)
    token = split * TILE + tl.arange(0, TILE)
    m, l, acc = attend_past(query, tile, token < position, scale, m, l, acc)
    if not ONE_TILE:
        step: tl.constexpr = (SPLITS - 1) * TILE
        for first in tl.range(split * TILE + step, position, step, num_stages=1):
            token = first + tl.arange(0, TILE)
            past = token < position
            row = cache_rows(table, token, past, BLOCK_SIZE)
            more = load_keys(k_cache, v_cache, row, past, kv_head, KV_HEADS, HEAD_DIM)
            m, l, acc = attend_past(query, more, past, scale, m, l, acc)
    store_partial(sums, stats, (head + member) * SPLITS + split, live, m, l, acc, HEAD_DIM)


@triton.jit
def current_split(
    sums,
    stats,
    k_cache,
    v_cache,
    heads_of_q,
    head_of_k,
    to,
    head,
    position,
    by_q,
    by_k,
    eps,
    scale,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    QK_NORM: tl.constexpr,
):
    """The current token: its K and V to `to` in the cache, and its score with each query.

    k and v are held once for each row of q, so that they lie in the same threads as q does; and
    with a row for every warp at least, so that a row's sums do not cross warps. A padded row of the
    batch (position -1) stores nothing and leaves the partial of no keys.
    """
    half: tl.constexpr = HEAD_DIM // 2
    row, pair, d = tl.arange(0, ROWS)[:, None], tl.arange(0, half)[None, :], tl.arange(0, HEAD_DIM)
    live = row < GROUP
    at = heads_of_q + row * HEAD_DIM + pair
    left, right = turned_heads(at, live, by_q, eps, HEAD_DIM, QK_NORM)
    at = head_of_k + row * 0 + pair
    k_left, k_right = turned_heads(at, live, by_k, eps, HEAD_DIM, QK_NORM)
    at = head_of_k + KV_HEADS * HEAD_DIM + row * 0 + d[None, :]
    v = tl.load(at, mask=live, other=0.0, cache_modifier=".cg")
    kind = k_cache.dtype.element_ty
    k_left, k_right = k_left.to(kind), k_right.to(kind)
    real = position >= 0
    first = (row == 0) & real
    tl.store(k_cache + to + row * 0 + pair, k_left, mask=first)
    tl.store(k_cache + to + half + row * 0 + pair, k_right, mask=first)
    tl.store(v_cache + to + row * 0 + d[None, :], v, mask=first)
    products = left.to(kind).to(tl.float32) * k_left.to(tl.float32)
    products += right.to(kind).to(tl.float32) * k_right.to(tl.float32)
    m = tl.where(real, tl.sum(products, axis=1) * scale, LOWEST)
    l = tl.where(real, tl.full((ROWS,), 1.0, tl.float32), 0.0)
    acc = tl.where(real, v.to(tl.float32), 0.0)
    member = tl.arange(0, ROWS)
    partial = (head + member) * SPLITS + SPLITS - 1
    store_partial(sums, stats, partial, member < GROUP, m, l, acc, HEAD_DIM)


@triton.jit
def apart_attention_kernel(
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
    CURRENT_ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED_SPLITS: tl.constexpr,
    TILE: tl.constexpr,
    ONE_TILE: tl.constexpr,
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
    is_current = split == SPLITS - 1
    table = block_table + request * table_stride
    position = tl.load(context_lens + request) - 1
    token = split * TILE + tl.arange(0, TILE)
    past = (token < position) & (split < SPLITS - 1)
    row = cache_rows(table, token, past, BLOCK_SIZE)
    tile = load_keys(k_cache, v_cache, row, past, kv_head, KV_HEADS, HEAD_DIM)
    place = tl.maximum(position, 0)
    angle = place.to(tl.int64) * half + tl.arange(0, half)[None, :]
    c, s = tl.load(cos + angle), tl.load(sin + angle)
    by_q = factors(c, s, q_norm, HEAD_DIM, QK_NORM)
    by_k = factors(c, s, k_norm, HEAD_DIM, QK_NORM)
    slot = tl.load(table + place // BLOCK_SIZE).to(tl.int64) * BLOCK_SIZE + place % BLOCK_SIZE
    pair = request * KV_HEADS + kv_head
    read_ahead(ahead, pair * SPLITS + split, SHARE, SPANS, GAP, BULK)
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
            position, tile, by_q, eps, scale, KV_HEADS, GROUP, PADDED_GROUP, HEAD_DIM, BLOCK_SIZE,
            SPLITS, TILE, ONE_TILE, QK_NORM,
        )  # fmt: skip
    combine_group_if_last(
        out, sums, stats, counters + pair, pair * GROUP, GROUP, ROWS, HEAD_DIM, SPLITS,
        PADDED_SPLITS, TOGETHER,
    )  # fmt: skip
