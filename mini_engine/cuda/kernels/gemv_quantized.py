"""Matrix-vector products of quantised weights: gemv.py's kernels, dequantisation in front.

    quantized_product_kernel:  out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out)
                               or silu(gate) · up,  (gate, up) = RMSNorm(x) Wᵀ
    dequantize_kernel:         W (N, K) itself, for a library's product

In, out: as in gemv.py, with W as a `QuantizedMatrix` (cuda/quantized_matrix.py).

A program loads its rows whole, in words of 8 (int4) or 4 (int8) codes, and their scales, above the
wait. Codes stay packed until they are multiplied, and x is held in the order in which they lie
(`load_columns`, `packed_input`). A code becomes float32 without a conversion, which a GPU does at a
quarter of its rate or slower. The mantissa of a float32 between 2²³ and 2²⁴ counts in ones, so

    (word & mask at bit p) | bits of 2²³  =  2²³ + code · 2ᵖ  as a float,

exact as long as the code ends below bit 23: two halves of a word, one shift a word. Subtracting 2²³
+ zero · 2ᵖ is exact too, and the 2ᵖ goes into x, once for all rows. That leaves three instructions
a weight: and-or, subtract, multiply-add. The scale is a factor of what a word adds up to; a scale
of the whole row (int8) waits until the end.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))

from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda import quantized_matrix
from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.gemv import GemvPlan, chunk_of, enough_programs
from mini_engine.cuda.kernels.launch import H200_SM_COUNT, pdl_release, pdl_wait
from mini_engine.cuda.quantized_matrix import QuantizedMatrix

WORDS = tl.constexpr(quantized_matrix.WORDS)  # of a segment: 128 codes of 4 bits, 64 of 8
WARP_WORDS = 128  # of a row that a warp loads at once, 16 bytes a thread
THREAD_LOADS = 8  # of 16 bytes: 32 registers of words
SHARED_CODES = 128  # floats of a thread that are kept for several tokens: a register each
EXPONENT = 0x4B000000  # of 2²³ as a float32


def quantized_plan(
    num_rows: int,
    width: int,
    bits: int,
    *,
    tokens: int = 1,
    pairs: bool = False,
    sm_count: int = H200_SM_COUNT,
) -> GemvPlan:
    """`gemv_plan` for a weight of `bits`; its chunk counts segments. A program has a warp for each
    WARP_WORDS of a chunk, so that a thread has the same columns of all rows. rows: the largest of
    8, 4, 2, 1 (with pairs of 4, 2, 1) for which a thread has at most THREAD_LOADS loads, with
    several tokens at most SHARED_CODES codes, and that leaves `enough_programs`."""
    codes = 128 // bits  # of a load
    most = THREAD_LOADS if tokens == 1 else min(THREAD_LOADS, SHARED_CODES // codes)
    segments = -(-width // (32 // bits * quantized_matrix.WORDS))
    chunk = chunk_of(segments * quantized_matrix.WORDS, 4 * WARP_WORDS)
    chunks, warps = -(-segments * quantized_matrix.WORDS // chunk), max(1, chunk // WARP_WORDS)
    halves = 2 if pairs else 1
    rows, enough = 8 // halves, enough_programs(sm_count)
    while rows > 1 and (rows * halves * chunks > most or -(-num_rows // rows) < enough):
        rows //= 2
    return GemvPlan(rows, warps, chunk // quantized_matrix.WORDS, chunks)


@triton.jit
def load_words(
    packed, row, N: tl.constexpr, SEGMENTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Rows of words (N, SEGMENTS, WORDS) as a tuple of tiles (len(row), CHUNK, WORDS): a chunk is
    CHUNK segments, and words beyond the last segment are zeros. Rows beyond N as in `load_rows`."""
    chunks = ()
    real = tl.minimum(row, N - 1).to(tl.int64)[:, None, None] * (SEGMENTS * WORDS)
    word = tl.arange(0, WORDS)[None, None, :]
    for c in tl.static_range(CHUNKS):
        segment = (c * CHUNK + tl.arange(0, CHUNK))[None, :, None]
        at = packed + real + segment * WORDS + word
        if CHUNK * CHUNKS == SEGMENTS:
            tile = tl.load(at, eviction_policy="evict_first")
        else:
            tile = tl.load(at, mask=segment < SEGMENTS, other=0, eviction_policy="evict_first")
        chunks = chunks + (tile,)
    return chunks


@triton.jit
def load_groups(
    values, row, N: tl.constexpr, SEGMENTS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, NIBBLES: tl.constexpr,
):  # fmt: skip
    """What each segment of the rows has, (N, SEGMENTS): scales, or with NIBBLES zeros, two in a
    byte. A tuple of tiles (len(row), CHUNK, 1)."""
    chunks = ()
    each: tl.constexpr = 2 if NIBBLES else 1
    real = tl.minimum(row, N - 1)[:, None, None] * ((SEGMENTS + each - 1) // each)
    for c in tl.static_range(CHUNKS):
        segment = (c * CHUNK + tl.arange(0, CHUNK))[None, :, None]
        tile = tl.load(values + real + segment // each, mask=segment < SEGMENTS, other=0)
        if NIBBLES:
            tile = (tile.to(tl.int32) >> (segment % 2 * 4)) & 15
        chunks = chunks + (tile,)
    return chunks


@triton.jit
def load_columns(
    vector, K: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    CACHE: tl.constexpr,
):  # fmt: skip
    """A vector (K,) as the codes lie: CHUNKS · PER tiles (1, CHUNK, WORDS), zeros beyond its end.
    Tile c · PER + i has the columns of code i of the words of chunk c."""
    per: tl.constexpr = 32 // BITS
    tiles = ()
    word = tl.arange(0, WORDS)[None, None, :]
    for c in tl.static_range(CHUNKS):
        segment = (c * CHUNK + tl.arange(0, CHUNK))[None, :, None]
        for i in tl.static_range(per):
            column = segment * (per * WORDS) + i * WORDS + word
            tile = tl.load(vector + column, mask=column < K, other=0.0, cache_modifier=CACHE)
            tiles = tiles + (tile,)
    return tiles


@triton.jit
def packed_input(
    x, gains, eps, K: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    """`scaled_input` for tiles of `load_columns`, each divided by the 2ᵖ of its codes."""
    per: tl.constexpr = 32 // BITS
    raw = load_columns(x, K, BITS, CHUNK, CHUNKS, ".cg")
    scaled = ()
    squares = tl.zeros((1, CHUNK, WORDS), tl.float32)
    for c in tl.static_range(CHUNKS):
        for i in tl.static_range(per):
            value = raw[c * per + i].to(tl.float32)
            if NORM:
                squares += value * value
                value = value * gains[c * per + i].to(tl.float32)
            # divided here, once for all rows, by the 2ᵖ that stays on the codes
            scaled = scaled + (value * (1.0 / (1 << (i % (per // 2) * BITS))),)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.reshape(squares, (CHUNK * WORDS,)), axis=0) / K + eps)
    return scaled, inverse


@triton.jit
def code_floats(words, zero, exponent, i: tl.constexpr, BITS: tl.constexpr):
    """(code i of each word - zero) · 2ᵖ in float32, exact; p: `i % (PER / 2) · BITS`. exponent:
    EXPONENT; with two numbers that it knows, the assembler makes two instructions of an and-or."""
    half: tl.constexpr = 16 // BITS
    shift: tl.constexpr = i % half * BITS
    mask: tl.constexpr = ((1 << BITS) - 1) << shift
    part = words if i < half else words >> 16
    value = ((part & mask) | exponent).to(tl.float32, bitcast=True)
    return value - (8388608.0 + zero * (1 << shift))


@triton.jit
def packed_multiply(
    words, scales, zeros, x, exponent, ROWS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """(ROWS,) float32: each row times x, with the scales of groups."""
    per: tl.constexpr = 32 // BITS
    total = tl.zeros((ROWS, CHUNK, WORDS), tl.float32)
    for c in tl.static_range(CHUNKS):
        part = tl.zeros((ROWS, CHUNK, WORDS), tl.float32)
        # as wide as the words before it is computed with: 2²³ + zero · 2ᵖ stays in its thread
        zero = 1.0 * (1 << (BITS - 1))
        if GROUPED:
            zero = tl.broadcast_to(zeros[c].to(tl.float32), (ROWS, CHUNK, WORDS))
        for i in tl.static_range(per):
            part += code_floats(words[c], zero, exponent, i, BITS) * x[c * per + i]
        if GROUPED:
            total += part * scales[c].to(tl.float32)
        else:
            total += part
    return tl.sum(tl.reshape(total, (ROWS, CHUNK * WORDS)), axis=1)


@triton.jit
def quantized_product_kernel(
    out, x, norm_weight, packed, scales, zeros, bias, eps, exponent, M: tl.constexpr,
    N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, GATED: tl.constexpr, NORM: tl.constexpr, BIAS: tl.constexpr,
    ADD: tl.constexpr, GROUPED: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`linear_kernel` of gemv.py, or with GATED its `gate_up_kernel`: N rows of either half of the
    weight. GROUPED: scales (N, segments) float16, and zeros; else (N,) float32."""
    segments: tl.constexpr = (K + 32 // BITS * WORDS - 1) // (32 // BITS * WORDS)
    halves: tl.constexpr = 2 if GATED else 1
    pdl_release(PDL)
    # The rows of the tile: gate, up, gate, up, ... where there are two halves.
    each = tl.arange(0, halves * ROWS)
    row = (each % halves) * N + tl.minimum(tl.program_id(0) * ROWS + each // halves, N - 1)
    own = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = own < N
    # Above the wait, as in gemv.py: words, which stay packed in registers, scales and zeros, gains.
    words = load_words(packed, row, halves * N, segments, CHUNK, CHUNKS)
    groups = load_groups(scales, row, halves * N, segments, CHUNK, CHUNKS, False) if GROUPED else ()
    points = load_groups(zeros, row, halves * N, segments, CHUNK, CHUNKS, True) if GROUPED else ()
    whole = 1.0 if GROUPED else tl.load(scales + row)
    gains = load_columns(norm_weight, K, BITS, CHUNK, CHUNKS, "") if NORM else ()
    offset = tl.load(bias + own, mask=real, other=0.0).to(tl.float32) if BIAS else 0.0
    pdl_wait(PDL)
    for m in tl.static_range(M):
        at = out + m * N + own
        before = (
            tl.load(at, mask=real, other=0.0, cache_modifier=".cg").to(tl.float32) if ADD else 0.0
        )
        xs, inverse = packed_input(x + m * K, gains, eps, K, BITS, CHUNK, CHUNKS, NORM)
        result = packed_multiply(
            words, groups, points, xs, exponent, halves * ROWS, BITS, CHUNK, CHUNKS, GROUPED
        )
        # what is a factor of the whole row, once a row: an int8 scale, and the norm
        result = result * whole * inverse
        if GATED:
            gate, up = tl.split(tl.reshape(result, (ROWS, 2)))
            result = silu(gate) * up
        result = result + offset + before
        tl.store(at, result.to(out.dtype.element_ty), mask=real)


@triton.jit
def dequantize_kernel(
    out, packed, scales, zeros, exponent, N: tl.constexpr, K: tl.constexpr, BITS: tl.constexpr,
    ROWS: tl.constexpr, CHUNK: tl.constexpr, GROUPED: tl.constexpr,
):  # fmt: skip
    """Program (i, j): ROWS rows, CHUNK segments of them, to out (N, K). It writes a weight-sized
    buffer, so it neither waits nor releases: a full boundary on both sides."""
    per: tl.constexpr = 32 // BITS
    segments: tl.constexpr = (K + per * WORDS - 1) // (per * WORDS)
    # Axes of the tile: rows, segments of a row, words of a segment, as they lie in memory.
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None, None]
    segment = tl.program_id(1) * CHUNK + tl.arange(0, CHUNK)[None, :, None]
    word = tl.arange(0, WORDS)[None, None, :]
    real, inside = tl.minimum(row, N - 1).to(tl.int64), segment < segments
    words = tl.load(packed + (real * segments + segment) * WORDS + word, mask=inside, other=0)
    scale = tl.load(scales + (real * segments + segment if GROUPED else real), mask=inside, other=0)
    zero = 1.0 * (1 << (BITS - 1))
    if GROUPED:
        byte = tl.load(zeros + real * ((segments + 1) // 2) + segment // 2, mask=inside, other=0)
        zero = ((byte.to(tl.int32) >> (segment % 2 * 4)) & 15).to(tl.float32)
    # One place of all words at a time: their codes are neighbouring columns, so stores are whole.
    for i in tl.static_range(per):
        column = segment * (per * WORDS) + i * WORDS + word
        value = code_floats(words, zero, exponent, i, BITS) * (1.0 / (1 << (i % (per // 2) * BITS)))
        at = out + row.to(tl.int64) * K + column
        mask = (row < N) & (column < K)
        tl.store(at, (value * scale.to(tl.float32)).to(out.dtype.element_ty), mask=mask)


def form_of(weight: QuantizedMatrix) -> dict[str, int]:
    """The constants of a weight's format."""
    return {"BITS": weight.bits, "GROUPED": weight.bits == 4}
