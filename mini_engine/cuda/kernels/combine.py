"""An alternative to the loop over heads in paged.py: the last program combines a group in one tile.

`combine_if_last` loads the partials of a head, reduces them, stores, and only then begins with the
next head: a group of four waits four times for L2. Here all loads of the group leave together.

In:  the partials of GROUP heads, as `store_partial` left them. Out: their rows of out.

The tile has heads · splits · head_dim numbers, each rounded up to a power of two, in the registers
of one program. `fits_registers` says when that is too much; then the loop of paged.py does it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels.paged import LOWEST, Heads, combine_if_last

MAX_THREAD_NUMBERS = 64  # of partials, float32, in one thread: a quarter of its registers


def fits_registers(heads: Heads, splits: int, warps: int) -> bool:
    """Whether a program of so many warps can hold the partials of a whole group."""
    rows, padded = triton.next_power_of_2(heads.group_size), triton.next_power_of_2(splits)
    return bool(rows * padded * heads.head_dim <= MAX_THREAD_NUMBERS * 32 * warps)


@triton.jit
def combine_group(
    sums,
    stats,
    head,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """(ROWS, HEAD_DIM), float32: what `combine` returns for the heads from `head` on. ROWS is the
    power of two at or above GROUP; the rows from GROUP on are zeros."""
    row, split = tl.arange(0, ROWS), tl.arange(0, PADDED)
    inside = (row < GROUP)[:, None] & (split < SPLITS)[None, :]
    partial = (head + row)[:, None] * SPLITS + split[None, :]
    m = tl.load(stats + partial * 2, mask=inside, other=LOWEST, cache_modifier=".cg")
    l = tl.load(stats + partial * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
    at = partial[:, :, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, None, :]
    acc = tl.load(sums + at, mask=inside[:, :, None], other=0.0, cache_modifier=".cg")
    weight = tl.exp(m - tl.max(m, axis=1)[:, None])
    whole = tl.sum(l * weight, axis=1)
    weight = weight / tl.where(whole > 0.0, whole, 1.0)[:, None]
    return tl.sum(acc * weight[:, :, None], axis=1)


@triton.jit
def combine_group_if_last(
    out,
    sums,
    stats,
    counter,
    head,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED: tl.constexpr,
    TOGETHER: tl.constexpr,
):
    """`combine_if_last`, with TOGETHER in one tile. Publishing and counting are the same, for the
    same reasons."""
    if TOGETHER:
        tl.debug_barrier()
        arrived = tl.atomic_add(counter, 1, sem="acq_rel")
        if arrived == SPLITS - 1:
            rows = combine_group(sums, stats, head, GROUP, ROWS, HEAD_DIM, SPLITS, PADDED)
            row = tl.arange(0, ROWS)[:, None]
            at = (head + row) * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
            tl.store(out + at, rows.to(out.dtype.element_ty), mask=row < GROUP)
            tl.store(counter, 0)
    else:
        combine_if_last(out, sums, stats, counter, head, GROUP, HEAD_DIM, SPLITS, PADDED)
