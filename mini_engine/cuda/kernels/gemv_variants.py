"""The kernels of gemv.py with their alternatives: how to multiply, how to read x.

    PRODUCT    "widened" (gemv.py), "pairs" (gemv_pairs.py), "dot" (gemv_dot.py)
    CACHE      of x: ".cg" past L1, or "" through it: a multiprocessor's programs share what came
    SHARE ...  bytes of a later kernel's weight to bring to L2 meanwhile (ahead.py)

In and out as in gemv.py. The parts below choose by PRODUCT, the kernels are the same for all; the
head's is in head_variants.py. gemv_choice.py says which run.

**x through L1.** Other kernels load past it (".cg") what the step wrote. Is a line of an earlier
layer's x in L1 a danger, where the buffers are the same in every layer? It would be if the line
could be hit after the wait. But `griddepcontrol.wait` orders more than time: the writes of the
kernel before are performed *and made visible* to this one (PTX ISA; CUDA's own example reads with
plain loads after cudaGridDependencySynchronize), and a plain load after it that returned an older
value would break that, wherever it was kept. Nothing of x is loaded above the wait, by this kernel
or, since all obey the rules of launch.py, by any that runs beside it: whoever waits for the same
writer reads after it. The loads stay plain: not ".nc", which may return stale data by contract.
A GPU test compares bits with and without PDL; if it fails, this goes first.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.ahead import read_ahead
from mini_engine.cuda.kernels.gemv import load_rows, load_vector, multiply
from mini_engine.cuda.kernels.gemv_dot import (
    dot_input,
    dot_multiply,
    dot_normed,
    dot_rows,
    row_number,
)
from mini_engine.cuda.kernels.gemv_pairs import pairs_input, pairs_multiply
from mini_engine.cuda.kernels.launch import pdl_release, pdl_wait

# ---------------------------------------------------------------- the parts, by product


@triton.jit
def weight_rows(
    weight, first, N: tl.constexpr, K: tl.constexpr, HALVES: tl.constexpr, ROWS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PRODUCT: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """A program's ROWS rows, numbered by `row_number`, as the product wants them."""
    if PRODUCT == "dot":
        return dot_rows(weight, first, N, K, HALVES, ROWS, CHUNK, CHUNKS, SLICES)
    else:
        row = row_number(tl.arange(0, ROWS), first, N, HALVES)
        per: tl.constexpr = 2 if PRODUCT == "pairs" else 1
        return load_rows(weight, row, HALVES * N, K // per, CHUNK // per, CHUNKS)


@triton.jit
def gains_of(
    norm_weight, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PRODUCT: tl.constexpr
):
    """The norm's weight in chunks."""
    per: tl.constexpr = 2 if PRODUCT == "pairs" else 1
    return load_vector(norm_weight, K // per, CHUNK // per, CHUNKS)


@triton.jit
def load_input(
    x, m: tl.constexpr, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    PRODUCT: tl.constexpr, CACHE: tl.constexpr,
):  # fmt: skip
    """Row m of x as a tuple of chunks in its dtype, zeros beyond K."""
    per: tl.constexpr = 2 if PRODUCT == "pairs" else 1
    raw = ()
    for c in tl.static_range(CHUNKS):
        column = c * (CHUNK // per) + tl.arange(0, CHUNK // per)
        at = x + m * (K // per) + column
        if CHUNK * CHUNKS == K:
            chunk = tl.load(at, cache_modifier=CACHE)
        else:
            chunk = tl.load(at, mask=column < K // per, other=0, cache_modifier=CACHE)
        raw = raw + (chunk,)
    return raw


@triton.jit
def widened_input(
    raw, gains, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    """`scaled_input` of gemv.py, of chunks that are loaded already."""
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
def prepared(
    raw, gains, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr, PRODUCT: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """(what `times` multiplies the rows by, what its result is multiplied by)."""
    if PRODUCT == "dot":
        operands, squares = dot_input(raw, gains, CHUNK, CHUNKS, SLICES, NORM)
        inverse = 1.0
        if NORM:
            inverse = tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / K + eps)
        return operands, inverse
    elif PRODUCT == "pairs":
        return pairs_input(raw, gains, eps, K // 2, CHUNK // 2, CHUNKS, NORM)
    else:
        return widened_input(raw, gains, eps, K, CHUNK, CHUNKS, NORM)


@triton.jit
def times(
    rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr, PRODUCT: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """(ROWS,) float32."""
    if PRODUCT == "dot":
        return dot_multiply(rows, x, ROWS, CHUNKS, SLICES, NORM)
    elif PRODUCT == "pairs":
        return pairs_multiply(rows, x, ROWS, CHUNK // 2, CHUNKS)
    else:
        return multiply(rows, x, ROWS, CHUNK, CHUNKS)


@triton.jit
def product_of(
    rows, raw, gains, eps, K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, NORM: tl.constexpr, PRODUCT: tl.constexpr, SLICES: tl.constexpr,
):  # fmt: skip
    """(ROWS,) float32: rows · x, x normed with NORM."""
    if PRODUCT == "dot" and NORM:
        operands, squares = dot_input(raw, gains, CHUNK, CHUNKS, SLICES, NORM)
        return dot_normed(rows, operands, squares, eps, K, ROWS, CHUNKS, SLICES)
    else:
        x, inverse = prepared(raw, gains, eps, K, CHUNK, CHUNKS, NORM, PRODUCT, SLICES)
        return times(rows, x, ROWS, CHUNK, CHUNKS, NORM, PRODUCT, SLICES) * inverse


# ---------------------------------------------------------------- the kernels


@triton.jit
def linear_variant_kernel(
    out, x, norm_weight, weight, bias, ahead, eps, M: tl.constexpr, N: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PRODUCT: tl.constexpr,
    SLICES: tl.constexpr, CACHE: tl.constexpr, SHARE: tl.constexpr, SPANS: tl.constexpr,
    GAP: tl.constexpr, BULK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` of gemv.py; x, weight and norm_weight are int32 for "pairs". After its own
    loads, so as not to be in their way, a program asks for its share of `ahead` (ahead.py)."""
    pdl_release(PDL)
    first = tl.program_id(0) * ROWS
    row = first + tl.arange(0, ROWS)
    real = row < N
    rows = weight_rows(weight, first, N, K, 1, ROWS, CHUNK, CHUNKS, PRODUCT, SLICES)
    gains = gains_of(norm_weight, K, CHUNK, CHUNKS, PRODUCT) if NORM else ()
    offset = tl.load(bias + row, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    read_ahead(ahead, tl.program_id(0), SHARE, SPANS, GAP, BULK)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + row
        before = (
            tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32) if ADD else 0.0
        )
        raw = load_input(x, m, K, CHUNK, CHUNKS, PRODUCT, CACHE)
        result = product_of(rows, raw, gains, eps, K, ROWS, CHUNK, CHUNKS, NORM, PRODUCT, SLICES)
        tl.store(at, (result + offset + before).to(out.dtype.element_ty), mask=real)


@triton.jit
def gate_up_variant_kernel(
    out, x, norm_weight, weight, eps, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, PRODUCT: tl.constexpr,
    SLICES: tl.constexpr, CACHE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`gate_up_kernel` of gemv.py; int32 for "pairs" as above."""
    pdl_release(PDL)
    first = tl.program_id(0) * ROWS
    rows = weight_rows(weight, first, N, K, 2, 2 * ROWS, CHUNK, CHUNKS, PRODUCT, SLICES)
    gains = gains_of(norm_weight, K, CHUNK, CHUNKS, PRODUCT)
    pdl_wait(PDL)
    for m in tl.static_range(M):
        raw = load_input(x, m, K, CHUNK, CHUNKS, PRODUCT, CACHE)
        both = product_of(rows, raw, gains, eps, K, 2 * ROWS, CHUNK, CHUNKS, True, PRODUCT, SLICES)
        gate, up = tl.split(tl.reshape(both, (ROWS, 2)))
        pair = first + tl.arange(0, ROWS)
        result = (silu(gate) * up).to(out.dtype.element_ty)
        tl.store(out + m * N + pair, result, mask=pair < N)
