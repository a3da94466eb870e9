"""Matrix-vector products that read each weight once: batches of 1 to 4 tokens.

    linear_kernel:   out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out)
    gate_up_kernel:  out = silu(gate) · up,  (gate, up) = RMSNorm(x) Wᵀ

In:  x (M, K); weight (N, K), as Hugging Face stores it; norm_weight (K,), of RMSNorm; bias (N,).
Out: out (M, N), or (M, I) for a weight (2I, K).

A decode step reads every weight once and computes next to nothing, so everything here serves one
aim: enough bytes in flight. By Little's law a multiprocessor needs about bandwidth / SMs × latency
= 4.8 TB/s / 132 × 0.6 µs = 22 KB in flight on an H200. So a program loads its rows of the weight
whole, in chunks that are powers of two, before it computes anything: no loop over K, no pipeline,
just registers. These loads stand above `pdl_wait`, so they run while the kernel before still does.
The norm needs no pass of its own: with xw = x · norm_weight,

    RMSNorm(x) Wᵀ = (x / rms · norm_weight) Wᵀ = (xw Wᵀ) / rms

so the sum of squares is taken beside the product and divides it at the end. A product is summed
over the chunks element by element first, and across threads only once, because a reduction costs
two barriers.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.launch import H200_SM_COUNT, launch_options, pdl_release, pdl_wait

MAX_GEMV_TOKENS = 4  # above it, multiplying in registers costs more than the tensor cores' layout
TILE_ELEMENTS = 16_384  # of a weight in one program: 32 KB in bf16
THREAD_ELEMENTS = 64  # of a weight in one thread: 32 registers in bf16, eight 16-byte loads
MAX_IDLE = 0.15  # of a program's columns that may lie beyond K


@dataclass(frozen=True)
class GemvPlan:
    """A program multiplies `rows` rows of the weight, in `chunks` chunks of `chunk` columns."""

    rows: int
    warps: int
    chunk: int
    chunks: int

    def num_programs(self, num_rows: int) -> int:
        """Programs for a weight of `num_rows` rows (pairs of rows, where the plan is for pairs)."""
        return -(-num_rows // self.rows)


def gemv_plan(
    num_rows: int, width: int, *, pairs: bool = False, sm_count: int = H200_SM_COUNT
) -> GemvPlan:
    """The plan for a weight (num_rows, width) on a GPU of `sm_count` multiprocessors; with `pairs`
    for one of (2 · num_rows, width), of which a program takes row i of both halves (gate and up),
    so that its tile is twice as large.

    rows: the largest of 8, 4, 2, 1 (with pairs of 4, 2, 1) whose tile has at most TILE_ELEMENTS
    elements and that leaves `enough_programs`; 1 if none does. chunk: `chunk_of` the width, up to
    2048; chunks: as many as cover it. warps: 8 if each of their 8 · 32 threads gets at least
    THREAD_ELEMENTS of the tile (of rows · width elements, twice that with pairs), else 4.
    """
    halves = 2 if pairs else 1
    rows, enough = 8 // halves, enough_programs(sm_count)
    while rows > 1 and (rows * halves * width > TILE_ELEMENTS or -(-num_rows // rows) < enough):
        rows //= 2
    chunk = chunk_of(width, 2048)
    warps = 8 if rows * halves * width >= 8 * 32 * THREAD_ELEMENTS else 4
    return GemvPlan(rows, warps, chunk, -(-width // chunk))


def enough_programs(sm_count: int) -> int:
    """Four for each multiprocessor, rounded down to a multiple of 32: weights have round numbers of
    rows, and 4096 rows in eights (512) should be enough for 132 multiprocessors (528)."""
    return 4 * sm_count // 32 * 32


def chunk_of(width: int, largest: int) -> int:
    """The largest power of two from 16 to `largest` of which a multiple covers `width` and at most
    MAX_IDLE more; 16 if there is none."""
    chunk = largest
    while chunk > 16 and -(-width // chunk) * chunk > width * (1 + MAX_IDLE):
        chunk //= 2
    return chunk


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Rows of a weight (N, K), in its dtype, as a tuple of CHUNKS tiles (len(row), CHUNK): tile c
    has the columns from c · CHUNK on, zeros beyond K. Only loads, so all are in flight together.

    `row` (len(row),) may go beyond N - 1. Such a row may hold anything, since nobody stores its
    result, but nothing outside the weight is read. Offsets in int64.
    """
    chunks = ()
    real = tl.minimum(row, N - 1).to(tl.int64)
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        at = weight + real[:, None] * K + column[None, :]
        if CHUNK * CHUNKS == K:
            tile = tl.load(at, eviction_policy="evict_first")
        else:
            inside = (column < K)[None, :]
            tile = tl.load(at, mask=inside, other=0.0, eviction_policy="evict_first")
        chunks = chunks + (tile,)
    return chunks


@triton.jit
def load_vector(
    vector, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, CACHE: tl.constexpr = ""
):
    """A vector (K,) as a tuple of chunks in its dtype, zeros beyond its end; every load stands
    before any use. CACHE: ".cg" for what the kernel before wrote."""
    chunks = ()
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        if CHUNK * CHUNKS == K:
            chunk = tl.load(vector + column, cache_modifier=CACHE)
        else:
            chunk = tl.load(vector + column, mask=column < K, other=0.0, cache_modifier=CACHE)
        chunks = chunks + (chunk,)
    return chunks


@triton.jit
def scaled_input(
    x, scales, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    """(scaled, inverse). scaled: x (K,) as a tuple of CHUNKS float32 chunks (CHUNK,), zeros beyond
    K, with NORM times the scales. inverse: 1 / sqrt(mean(x²) + eps), float32, or 1.0 without NORM.

    The mean is of the K numbers of the row, before the scales. `scales`: the norm's weight as
    `load_vector` returns it, () without NORM. x is what the kernel before wrote, so it is loaded
    past L1 (".cg").
    """
    raw = ()
    for c in tl.static_range(CHUNKS):  # every load before any use
        column = c * CHUNK + tl.arange(0, CHUNK)
        raw = raw + (tl.load(x + column, mask=column < K, other=0.0, cache_modifier=".cg"),)
    scaled = ()
    squares = tl.zeros((CHUNK,), tl.float32)
    for c in tl.static_range(CHUNKS):
        value = raw[c].to(tl.float32)  # type: ignore[var-annotated]
        if NORM:
            squares += value * value
            value = value * scales[c].to(tl.float32)
        scaled = scaled + (value,)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / K + eps)
    return scaled, inverse


@triton.jit
def multiply(rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """(ROWS,) float32: each row of the weight times x, all products and sums in float32.

    rows: CHUNKS tiles (ROWS, CHUNK) in the weight's dtype; x: CHUNKS float32 chunks (CHUNK,).
    """
    products = tl.zeros((ROWS, CHUNK), tl.float32)
    for c in tl.static_range(CHUNKS):
        products += rows[c].to(tl.float32) * x[c][None, :]
    return tl.sum(products, axis=1)


@triton.jit
def linear_kernel(
    out, x, norm_weight, weight, bias, eps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr,
    BIAS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i: ROWS rows of the weight (the last may lie beyond N), for all M tokens.

        out[m, row] = x[m] · weight[row], x[m] normed with NORM (+ bias[row] with BIAS)
                      (+ the old out[m, row] with ADD: a residual that the step wrote)

    Everything in float32, rounded once, to the dtype of `out`. norm_weight and bias are None
    without NORM and BIAS. The release comes first, and a program waits once, not for each token.
    Above the wait stands what no kernel writes, read once for all tokens; below it everything that
    the step writes: x and out, each number of them read once by a program and past L1 (".cg").
    Nothing beside the tensors is touched.
    """
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < N
    rows = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS) if NORM else ()
    offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + row
        before = (
            tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32) if ADD else 0.0
        )
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, NORM)
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset + before
        tl.store(at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def gate_up_kernel(
    out, x, norm_weight, weight, eps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program i: ROWS rows of gate and the same rows of up. N: I, half of the weight's rows.

        out[m, i] = silu(gate) · up
        gate = normed x[m] · weight[i], up = normed x[m] · weight[N + i]

    In float32, rounded once; above and below the wait as in `linear_kernel`. The rows alternate in
    the tile, gate, up, gate, up, ..., so one product and one reduction serve both.
    """
    pdl_release(PDL)
    each = tl.arange(0, 2 * ROWS)
    row = tl.program_id(0) * ROWS + each // 2
    rows = load_rows(weight, (each % 2) * N + row, 2 * N, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse = scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, True)
        both = multiply(rows, xs, 2 * ROWS, CHUNK, CHUNKS) * inverse
        gate, up = tl.split(tl.reshape(both, (ROWS, 2)))
        pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        result = (silu(gate) * up).to(out.dtype.element_ty)
        tl.store(out + m * N + pair, result, mask=pair < N)


def launch(
    kernel: Any, plan: GemvPlan, out: Tensor, x: Tensor, *others: Any, pdl: bool = False,
    **constants: Any,
) -> None:  # fmt: skip
    """A kernel of this shape: (out, x, *others), and M, N, K, the plan and more as constants. All
    are checked already; M is at most MAX_GEMV_TOKENS, and N is the width of `out`."""
    kernel[(plan.num_programs(out.shape[1]),)](
        out, x, *others, M=len(x), N=out.shape[1], K=x.shape[1],
        ROWS=plan.rows, CHUNK=plan.chunk, CHUNKS=plan.chunks,
        num_warps=plan.warps, **constants, **launch_options(pdl, x.device),
    )  # fmt: skip
