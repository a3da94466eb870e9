"""Matrix-vector products that read each weight once: batches of 1 to 4 tokens.

    linear_kernel:   out = (RMSNorm(x) · gain or x) Wᵀ (+ bias) (+ out)
    gate_up_kernel:  out = silu(gate) · up,  (gate, up) = (RMSNorm(x) · gain) Wᵀ

In:  x (M, K), weight (N, K) as Hugging Face stores it, gain (K,), bias (N,).
Out: out (M, N), or (M, I) of a weight (2I, K).

A program owns some rows of the weight and holds them whole, in registers, in chunks that are powers
of two. All weight loads stand above `pdl_wait`: they run while the kernel before still does. The
norm needs no pass of its own: with xg = x · gain,

    (x / rms · gain) Wᵀ = (xg Wᵀ) / rms

so the sum of squares is taken beside the product and divides it at the end. A product is summed
over the chunks element by element first and across threads once: a reduction is two barriers.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.gemv_plan import GemvPlan
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait


@triton.jit
def load_rows(
    weight, row, N: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Rows of a weight (N, K), in its dtype, as a tuple of CHUNKS tiles (len(row), CHUNK): tile c
    has columns c · CHUNK and on, zeros beyond K. Loads only, so all are in flight together.

    `row` (len(row),) may go beyond N - 1: what such a row holds is free, since nobody stores its
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
def load_vector(vector, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """A vector (K,) as a tuple of chunks, zeros beyond its end."""
    chunks = ()
    for c in tl.static_range(CHUNKS):
        column = c * CHUNK + tl.arange(0, CHUNK)
        chunks = chunks + (tl.load(vector + column, mask=column < K, other=0.0),)
    return chunks


@triton.jit
def scaled_input(
    x, gains, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    """(scaled, inverse): x (K,) as a tuple of CHUNKS float32 chunks (CHUNK,), zeros beyond K,
    with NORM times the gains; and 1 / sqrt(mean(x²) + eps), a float32, or 1.0 without NORM.

    The mean is of the K numbers of the row, before the gains. `gains`: what `load_vector` gave, ()
    without NORM. x is what the kernel before wrote, so it is loaded past L1 (".cg").
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
            value = value * gains[c].to(tl.float32)
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
    out,
    x,
    gain,
    weight,
    bias,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program for ROWS rows of the weight (the last may lie beyond N) and all M tokens.

        out[m, row] = x[m] · weight[row], x[m] normed with NORM (+ bias[row] with BIAS)
                      (+ what out[m, row] held with ADD: a residual that the step wrote)

    All of it in float32, rounded once, into the dtype of `out`. gain and bias are None without
    NORM and BIAS. First the release; then, above the wait, what no kernel writes, read once for
    all tokens; below it all that the step writes: x and out.
    """
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = row < N
    rows = load_rows(weight, row, N, K, CHUNK, CHUNKS)
    gains = load_vector(gain, K, CHUNK, CHUNKS) if NORM else ()
    offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + row
        before = (
            tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32) if ADD else 0.0
        )
        xs, inverse = scaled_input(x + m * K, gains, eps, K, CHUNK, CHUNKS, NORM)
        result = multiply(rows, xs, ROWS, CHUNK, CHUNKS) * inverse + offset + before
        tl.store(at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def gate_up_kernel(
    out,
    x,
    gain,
    weight,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program for ROWS rows of gate and the same rows of up. N: I, half of the weight's rows.

        out[m, i] = silu(gate) · up
        gate = normed x[m] · weight[i], up = normed x[m] · weight[N + i]

    In float32, rounded once; above and below the wait as in `linear_kernel`. The tile holds the
    rows in turn, gate, up, gate, up, ...: one product and one reduction for both.
    """
    pdl_release(PDL)
    each = tl.arange(0, 2 * ROWS)
    row = tl.program_id(0) * ROWS + each // 2
    rows = load_rows(weight, (each % 2) * N + row, 2 * N, K, CHUNK, CHUNKS)
    gains = load_vector(gain, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        xs, inverse = scaled_input(x + m * K, gains, eps, K, CHUNK, CHUNKS, True)
        both = multiply(rows, xs, 2 * ROWS, CHUNK, CHUNKS) * inverse
        gate, up = tl.split(tl.reshape(both, (ROWS, 2)))
        pair = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
        result = (silu(gate) * up).to(out.dtype.element_ty)
        tl.store(out + m * N + pair, result, mask=pair < N)


# ---------------------------------------------------------------- launches (the ops: linear.py)


def launch_linear(
    out: Tensor,
    x: Tensor,
    gain: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
    plan: GemvPlan,
) -> None:
    """Shapes as at the top of the file, already checked; M at most MAX_GEMV_TOKENS."""
    num_rows, width = weight.shape
    options = launch_options(pdl, x)
    linear_kernel[(plan.num_programs(num_rows),)](
        *(out, x, gain, weight, bias, eps),
        *(len(x), num_rows, width, plan.rows, plan.chunk, plan.chunks),
        *(gain is not None, bias is not None, add, pdl),
        num_warps=plan.warps,
        **options,
    )


def launch_gate_up(
    out: Tensor, x: Tensor, gain: Tensor, weight: Tensor, eps: float, pdl: bool, plan: GemvPlan
) -> None:
    """As above, weight (2I, K), out (M, I), and a plan for pairs."""
    num_pairs, width = weight.shape[0] // 2, weight.shape[1]
    options = launch_options(pdl, x)
    gate_up_kernel[(plan.num_programs(num_pairs),)](
        *(out, x, gain, weight, eps),
        *(len(x), num_pairs, width, plan.rows, plan.chunk, plan.chunks, pdl),
        num_warps=plan.warps,
        **options,
    )
