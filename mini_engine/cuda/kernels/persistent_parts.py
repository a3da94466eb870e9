"""The parts of the persistent kernel: its grid barrier, its share of a product, its attention.

**A grid barrier instead of a kernel boundary.** After a phase each program adds 1 to a counter and
polls it until all have. The counter only grows, so the end of phase n is at n · PROGRAMS. Why that
orders memory: the block's barrier puts the stores of all its threads before one thread's add
(release), and release is cumulative; whoever polls the full count (acquire) has them, and its own
block's barrier hands that on to all its threads, which read past L1 (".cg"). See PTX ISA, "Memory
Consistency Model". A barrier of programs that are not all resident would hang: the launch has to be
cooperative, which refuses such a grid.

**The next weights are under way while it waits.** Between its add and its polls a program issues
the loads of its share of the next phase's weights. They depend on nothing, they go to registers,
and nothing waits for them until the barrier is passed. They come after the add, because a release
may wait for loads that began before it. Tests read both from the machine code.

**Who owns what.** Rows are dealt in tiles: tile t belongs to program t % PROGRAMS, which alone
computes and stores it. So every sum has one order, and no result depends on timing.

A share is a tuple (N, K, ROWS, CHUNK, CHUNKS, HELD, MORE): see `Share` in persistent.py; heads are
a tuple (KV_HEADS, GROUP, PADDED_GROUP, HEAD_DIM, BLOCK_SIZE, SPLITS, PADDED_SPLITS, TILE, ITEMS).
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.fused_attention import attend, turn
from mini_engine.cuda.kernels.gemv import multiply, scaled_input
from mini_engine.cuda.kernels.paged import (
    LOWEST,
    cache_rows,
    combine_if_last,
    load_keys,
    store_partial,
)


@triton.jit
def arrive(counter, SYNC: tl.constexpr):
    """Say that this program's stores are done."""
    if SYNC:
        tl.debug_barrier()
        tl.atomic_add(counter, 1, sem="release", scope="gpu")


@triton.jit
def wait(counter, target, SYNC: tl.constexpr):
    """Until `target` arrivals. The compiler makes a load of an atomic that adds 0."""
    if SYNC:
        while tl.atomic_add(counter, 0, sem="acquire", scope="gpu") < target:
            pass
        tl.debug_barrier()


# ---------------------------------------------------------------- products


@triton.jit
def take(weight, added, tile, SHARE: tl.constexpr, PAIRS: tl.constexpr, ADDED: tl.constexpr):
    """Load one tile: its rows (with PAIRS of both halves, alternating) as a tuple of chunks, and
    with ADDED last what they add: the bias, or the residual, which nobody has written since the
    barrier before the last. Beyond the last tile: the last again; its results are not stored."""
    n: tl.constexpr = SHARE[0]
    k: tl.constexpr = SHARE[1]
    tile_rows: tl.constexpr = SHARE[2]
    chunk: tl.constexpr = SHARE[3]
    chunks: tl.constexpr = SHARE[4]
    first = tl.minimum(tile, n // tile_rows - 1) * tile_rows
    row = tl.arange(0, tile_rows)
    if PAIRS:
        each = tl.arange(0, 2 * tile_rows)
        row = (each % 2) * n + each // 2
    start = weight + first.to(tl.int64) * k  # a uniform address: the rest are constants a thread
    rows = ()
    for c in tl.static_range(chunks):
        column = c * chunk + tl.arange(0, chunk)
        at = start + (row[:, None] * k + column[None, :])
        if chunk * chunks == k:
            loaded = tl.load(at, eviction_policy="evict_first")
        else:
            inside = (column < k)[None, :]
            loaded = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        rows = rows + (loaded,)
    if ADDED:
        rows = rows + (tl.load(added + first + row, cache_modifier=".cg"),)
    return rows


@triton.jit
def hold(
    weight,
    added,
    program,
    SHARE: tl.constexpr,
    PAIRS: tl.constexpr,
    ADDED: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """A program's first tiles, as many as it holds at once. Only loads."""
    at_once: tl.constexpr = SHARE[5]
    held = ()
    for i in tl.static_range(at_once):
        held = held + (take(weight, added, program + i * PROGRAMS, SHARE, PAIRS, ADDED),)
    return held


@triton.jit
def finish(
    out, rows, x, inverse, tile, SHARE: tl.constexpr, PAIRS: tl.constexpr, ADDED: tl.constexpr
):
    """Multiply a tile by x and store its rows."""
    n: tl.constexpr = SHARE[0]
    tile_rows: tl.constexpr = SHARE[2]
    chunk: tl.constexpr = SHARE[3]
    chunks: tl.constexpr = SHARE[4]
    if PAIRS:
        both = multiply(rows, x, 2 * tile_rows, chunk, chunks) * inverse
        gate, up = tl.split(tl.reshape(both, (tile_rows, 2)))
        result = silu(gate) * up
    else:
        result = multiply(rows, x, tile_rows, chunk, chunks) * inverse
        if ADDED:
            result += rows[chunks].to(tl.float32)
    row = tile * tile_rows + tl.arange(0, tile_rows)
    tl.store(out + row, result.to(out.dtype.element_ty), mask=row < n)


@triton.jit
def product(
    out,
    x,
    weight,
    added,
    held,
    scales,
    eps,
    program,
    SHARE: tl.constexpr,
    NORM: tl.constexpr,
    PAIRS: tl.constexpr,
    ADDED: tl.constexpr,
    PROGRAMS: tl.constexpr,
):
    """A program's tiles: those that it holds and, if it has more, the others in their places."""
    at_once: tl.constexpr = SHARE[5]
    more: tl.constexpr = SHARE[6]
    scaled, inverse = scaled_input(x, scales, eps, SHARE[1], SHARE[3], SHARE[4], NORM)
    if more > 0:
        for done in tl.range(0, more, at_once, num_stages=1):
            kept = ()
            for i in tl.static_range(at_once):
                tile = program + (done + i) * PROGRAMS
                finish(out, held[i], scaled, inverse, tile, SHARE, PAIRS, ADDED)
                later = tile + at_once * PROGRAMS
                kept = kept + (take(weight, added, later, SHARE, PAIRS, ADDED),)
            held = kept
    for i in tl.static_range(at_once):
        tile = program + (more + i) * PROGRAMS
        finish(out, held[i], scaled, inverse, tile, SHARE, PAIRS, ADDED)


# ---------------------------------------------------------------- attention


@triton.jit
def first_keys(k_cache, v_cache, block_table, blocks, item, HEADS: tl.constexpr):
    """The first tile of (KV head, split) `item`: where it lies does not depend on the context."""
    kv_heads: tl.constexpr = HEADS[0]
    block_size: tl.constexpr = HEADS[4]
    splits: tl.constexpr = HEADS[5]
    tile_keys: tl.constexpr = HEADS[7]
    token = item % splits * tile_keys + tl.arange(0, tile_keys)
    mapped = (token < blocks * block_size) & (item < kv_heads * splits)
    row = cache_rows(block_table, token, mapped, block_size)
    return load_keys(k_cache, v_cache, row, mapped, item // splits, kv_heads, HEADS[3])


@triton.jit
def attention(
    out,
    k_cache,
    v_cache,
    parts,
    qkv,
    block_table,
    position,
    angles,
    weights,
    eps,
    scale,
    item,
    tile,
    HEADS: tl.constexpr,
    QK_NORM: tl.constexpr,
):
    """As `fused_attention_kernel` below its wait, for one request. parts: (sums, stats, counters);
    angles: cos and sin at the position; weights: of the norms of q and k, halves of each."""
    kv_heads: tl.constexpr = HEADS[0]
    group: tl.constexpr = HEADS[1]
    padded: tl.constexpr = HEADS[2]
    head_dim: tl.constexpr = HEADS[3]
    block_size: tl.constexpr = HEADS[4]
    splits: tl.constexpr = HEADS[5]
    tile_keys: tl.constexpr = HEADS[7]
    half: tl.constexpr = head_dim // 2
    kv_head, split = item // splits, item % splits
    kind = k_cache.dtype.element_ty
    c, s = angles
    pair, d = tl.arange(0, half), tl.arange(0, head_dim)
    member = tl.arange(0, padded)
    live = (member < group)[:, None]
    head = kv_head * group
    q_at = qkv + (head + member)[:, None] * head_dim + pair[None, :]
    q_left = tl.load(q_at, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    q_right = tl.load(q_at + half, mask=live, other=0.0, cache_modifier=".cg").to(tl.float32)
    k_at = qkv + (kv_heads * group + kv_head) * head_dim
    k_left = tl.load(k_at + pair, cache_modifier=".cg").to(tl.float32)
    k_right = tl.load(k_at + half + pair, cache_modifier=".cg").to(tl.float32)
    v = tl.load(k_at + kv_heads * head_dim + d, cache_modifier=".cg")
    q_weights = ()
    if QK_NORM:
        q_weights = (weights[0][None, :], weights[1][None, :])
    q_left, q_right = turn(
        q_left, q_right, q_weights, c[None, :], s[None, :], eps, head_dim, QK_NORM
    )
    k_left, k_right = turn(k_left, k_right, weights[2:], c, s, eps, head_dim, QK_NORM)
    query = (q_left.to(kind), q_right.to(kind))
    current = (k_left.to(kind), k_right.to(kind), v)
    if (split == 0) & (position >= 0):
        block = tl.load(block_table + position // block_size).to(tl.int64)
        slot = block * block_size + position % block_size
        to = (slot * kv_heads + kv_head) * head_dim
        tl.store(k_cache + to + pair, current[0])
        tl.store(k_cache + to + half + pair, current[1])
        tl.store(v_cache + to + d, v)
    m = tl.full((padded,), LOWEST, tl.float32)
    l = tl.zeros((padded,), tl.float32)
    acc = tl.zeros((padded, head_dim), tl.float32)
    for first in tl.range(split * tile_keys, position + 1, splits * tile_keys, num_stages=1):
        token = first + tl.arange(0, tile_keys)
        state = attend(query, tile, current, token, position, scale, (m, l, acc))
        m, l, acc = state
        token += splits * tile_keys
        row = cache_rows(block_table, token, token < position, block_size)
        tile = load_keys(k_cache, v_cache, row, token < position, kv_head, kv_heads, head_dim)
    sums, stats, counters = parts
    partial = (head + member) * splits + split
    store_partial(sums, stats, partial, member < group, m, l, acc, head_dim)
    combine_if_last(out, sums, stats, counters + kv_head, head, group, head_dim, splits, HEADS[6])
