"""Products of 1 to 4 tokens in bf16: gemv.py's kernels on the tensor cores, with no weight moved.

In, out and plans as in gemv.py. Its kernels widen and multiply every weight in a register, 210 to
490 instructions a warp after the wait; tensor cores leave 100 to 260.

**Exact operands.** Tensor cores multiply bf16 by bf16 and add in float32. Without a norm x is bf16
as it comes. With one, x · gain has 16 bits of precision: high = its upper 8, cut off, and low = the
rest, are both bf16 without rounding, so W high + W low is W (x · gain). (Except where low falls
under 2^-133, and for infinite x.) What is left of the error is the order of a float32 sum.

**A layout that needs no exchange.** A matrix instruction (m16n8k16) wants, in lane l, of operand A
row l / 4 and of B column l / 4, and there the columns of K that belong to l % 4. A lane loads eight
numbers, 16 bytes, from one row. So a chunk of K is cut into SEGMENTS = 8 segments for each of B
slices, one slice a warp:

    column = ((group · B + slice) · 8 + segment) · 32 + (l % 4) · 8 + each of eight

Row r's segment s is row s · ROWS + r of A, a weight's 32 numbers a group, and segment s' of x is
column s' of B. In this order a warp's 16-byte loads of weight and x already are the operands: which
number of K meets which does not matter to a sum, as long as both sides agree. Of the product only s
== s' is wanted, an eighth; the matrix units have that to spare. Then the lanes of a row and the
warps are added up, together with the squares.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

from dataclasses import replace

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.gemv import GemvPlan, load_vector
from mini_engine.cuda.kernels.launch import pdl_release, pdl_wait

SEGMENTS = tl.constexpr(8)
DOT_COLUMNS = 256  # of a chunk, for each warp


def dot_plan(plan: GemvPlan, *tensors: Tensor) -> GemvPlan | None:
    """`plan` with as many warps as slices, or None where gemv.py must multiply: for any type but
    bf16, and for a chunk of less than DOT_COLUMNS (a real model's is never so short)."""
    slices = min(plan.warps, plan.chunk // DOT_COLUMNS)
    if not slices or any(tensor.dtype != torch.bfloat16 for tensor in tensors):
        return None
    return replace(plan, warps=slices)


@triton.jit
def dot_rows(
    weight, first, N: tl.constexpr, K: tl.constexpr, HALVES: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """A program's rows, ROWS counting both halves, as a tuple of tiles (SLICES, 16, depth), the
    parts of chunk 0, of chunk 1, ...; only loads, zeros beyond K, nothing beyond the weight."""
    groups: tl.constexpr = CHUNK // (SLICES * SEGMENTS * 32)
    size: tl.constexpr = 16 if ROWS > 1 else 8
    tiles = ()
    for c in tl.static_range(CHUNKS):
        for part in tl.static_range(ROWS * SEGMENTS // size):
            # Two axes leave the compiler one way to hand them to lanes and warps: along each
            # segment four lanes, then eight places of the tile, then the slices.
            line = tl.arange(0, size * groups * SLICES)[:, None]
            place = part * size + line // (8 * SLICES * groups) * 8 + line % 8
            # Row r of the tile: row first + r of a weight (N, K). With two HALVES it is gate and up
            # in turn, rows first + r // 2 of either half of a weight (2N, K).
            r = place % ROWS
            row = (r % HALVES) * N + first + r // HALVES
            real = tl.minimum(row, HALVES * N - 1).to(tl.int64)
            segment = line // 8 % (SLICES * groups) * SEGMENTS + place // ROWS
            column = c * CHUNK + segment * 32 + tl.arange(0, 32)[None, :]
            at = weight + (real * K + column)
            if CHUNK * CHUNKS == K:
                tile = tl.load(at, eviction_policy="evict_first")
            else:
                tile = tl.load(at, mask=column < K, other=0.0, eviction_policy="evict_first")
            # the pairs of an eight become steps of K, with the lanes between them
            tile = tl.reshape(tile, (size // 8, groups, SLICES, 8, 4, 4, 2))
            tile = tl.permute(tile, (2, 0, 3, 1, 5, 4, 6))
            tiles = tiles + (tl.reshape(tile, (SLICES, size, groups * 32)),)
    return tiles


@triton.jit
def columns_of(x, CHUNK: tl.constexpr, SLICES: tl.constexpr):
    """A chunk (CHUNK,) as operand B, (SLICES, depth, SEGMENTS), K in the order of `dot_rows`."""
    groups: tl.constexpr = CHUNK // (SLICES * SEGMENTS * 32)
    x = tl.reshape(x, (groups, SLICES, SEGMENTS, 4, 4, 2))
    x = tl.permute(x, (1, 0, 4, 3, 5, 2))
    return tl.reshape(x, (SLICES, groups * 32, SEGMENTS))


@triton.jit
def dot_input(
    raw, gains, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr, NORM: tl.constexpr
):
    """(operands, squares). operands: for each chunk, (high,) or with NORM (high, low). squares, to
    be summed up: (8, 4 · SLICES) float32, with NORM."""
    operands = ()
    squares = tl.zeros((CHUNK,), tl.float32)
    for c in tl.static_range(CHUNKS):
        if NORM:
            value = raw[c].to(tl.float32)
            squares += value * value
            value = value * gains[c].to(tl.float32)
            upper = (value.to(tl.int32, bitcast=True) & -65536).to(tl.float32, bitcast=True)
            high, low = upper.to(tl.bfloat16), (value - upper).to(tl.bfloat16)
            both = columns_of(high, CHUNK, SLICES), columns_of(low, CHUNK, SLICES)
            operands = operands + (both,)
        else:
            operands = operands + ((columns_of(raw[c], CHUNK, SLICES),),)
    if NORM:
        # what a thread holds first: its eights, the groups; then no data has moved
        squares = tl.reshape(squares, (CHUNK // (SLICES * 256), SLICES, 8, 4, 8))
        squares = tl.sum(tl.sum(squares, axis=4), axis=0)
        squares = tl.reshape(tl.permute(squares, (1, 0, 2)), (8, 4 * SLICES))
    return operands, squares


@triton.jit
def dot_partials(
    rows, operands, ROWS: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """(8, 4 · SLICES) float32: what is left to add up of a product. Place p is of row p % ROWS."""
    size: tl.constexpr = 16 if ROWS > 1 else 8
    parts: tl.constexpr = ROWS * SEGMENTS // size
    total = tl.zeros((SLICES, size, SEGMENTS), tl.float32)
    segment = tl.arange(0, SEGMENTS)[None, :]
    for part in tl.static_range(parts):
        sums = tl.zeros((SLICES, size, SEGMENTS), tl.float32)
        for c in tl.static_range(CHUNKS):
            if NORM:
                sums = tl.dot(rows[c * parts + part], operands[c][1], sums)
            sums = tl.dot(rows[c * parts + part], operands[c][0], sums)
        # of every segment of the weight with every segment of x, those that belong together
        own = (part * size + tl.arange(0, size)[:, None]) // ROWS == segment
        total += tl.where(own[None, :, :], sums, 0.0)
    # first what one thread holds, so that the rest is one reduction across threads
    total = tl.sum(tl.reshape(total, (SLICES, size // 8, 8, SEGMENTS // 2, 2)), axis=4)
    total = tl.permute(tl.sum(total, axis=1), (1, 0, 2))
    return tl.reshape(total, (8, SLICES * SEGMENTS // 2))


@triton.jit
def fold(places, ROWS: tl.constexpr):
    """(ROWS,) of the eight places, which hold a row 8 / ROWS times."""
    if ROWS == 8:
        return places
    else:
        return tl.sum(tl.reshape(places, (8 // ROWS, ROWS)), axis=0)


@triton.jit
def add_both(a, b, c, d):
    return a + c, b + d


@triton.jit
def dot_product_kernel(
    out, x, norm_weight, weight, bias, eps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, SLICES: tl.constexpr,
    GATED: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` of gemv.py, or with GATED its `gate_up_kernel`: N rows of either half of the
    weight. SLICES: warps, which share a chunk."""
    halves: tl.constexpr = 2 if GATED else 1
    pdl_release(PDL)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    real = row < N
    # What no kernel writes, in flight and then in registers while the kernel before ends. The rows
    # are never copied: they are the tensor cores' operand as they lie. Of two halves they are gate,
    # up, gate, up, ..., so that a pair is in one program and one product serves both.
    rows = dot_rows(weight, first, N, K, halves, halves * ROWS, CHUNK, CHUNKS, SLICES)
    gains = load_vector(norm_weight, K, CHUNK, CHUNKS) if NORM else ()
    offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    pdl_wait(PDL)
    for m in tl.static_range(M):
        # The residual first: it is needed last, and its trip to L2 runs beside that of x.
        at = out + m * N + row
        before = (
            tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32) if ADD else 0.0
        )
        raw = load_vector(x + m * K, K, CHUNK, CHUNKS, ".cg")
        operands, squares = dot_input(raw, gains, CHUNK, CHUNKS, SLICES, NORM)
        places = dot_partials(rows, operands, halves * ROWS, CHUNKS, SLICES, NORM)
        if NORM:  # one reduction across threads for products and squares: two barriers and not four
            sums, squared = tl.reduce((places, squares), 1, add_both)
            inverse = tl.rsqrt(tl.sum(squared, axis=0) / K + eps)
            result = fold(sums, halves * ROWS) * inverse
        else:
            result = fold(tl.sum(places, axis=1), halves * ROWS)
        if GATED:
            gate, up = tl.split(tl.reshape(result, (ROWS, 2)))
            result = silu(gate) * up
        tl.store(at, (result + offset + before).to(out.dtype.element_ty), mask=real)
