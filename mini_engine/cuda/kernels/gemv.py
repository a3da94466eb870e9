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
    """Rows of a weight (N, K) as CHUNKS tiles (len(row), CHUNK): loads only, so all of them are in
    flight together. For a row beyond the last the last is read; nobody stores its result."""
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
    """x (K,) in float32 chunks, times the gains with NORM; and 1 / rms(x), 1 without NORM."""
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
    """(ROWS,): each row of the weight times x, float32."""
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
    """One program for ROWS rows of the weight and all M tokens. ADD: onto what `out` holds."""
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

    The tile holds them in turn, gate, up, gate, up, ...: one product and one reduction for both.
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
