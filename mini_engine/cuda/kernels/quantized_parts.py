"""What the kernels of gemv_quantized.py are made of: words in registers, and codes as floats.

A program holds its rows as words (`load_words`), with their scales and zeros, and x in the order in
which the codes lie (`load_columns`, `packed_input`). `code_floats` unpacks, `packed_multiply`
multiplies. A code becomes float32 without a conversion, which a GPU does at a quarter of its rate
or slower. The mantissa of a float32 between 2²³ and 2²⁴ counts in ones, so

    (word & mask at bit p) | bits of 2²³  =  2²³ + code · 2ᵖ  as a float,

exact as long as the code ends below bit 23: two halves of a word, one shift a word. Subtracting
2²³ + zero · 2ᵖ is exact too, and the 2ᵖ goes into x, once for all rows. That leaves three
instructions a weight: and-or, subtract, multiply-add. The scale is a factor of what a word adds up
to, so it costs one more a word; a scale of the whole row (int8) waits until the end.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels import quantized

WORDS = tl.constexpr(quantized.WORDS)  # of a segment: 128 codes of 4 bits, 64 of 8


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
def load_scales(
    scales, row, N: tl.constexpr, SEGMENTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Scales (N, SEGMENTS) of the rows, a tuple of tiles (len(row), CHUNK, 1)."""
    chunks = ()
    real = tl.minimum(row, N - 1)[:, None, None] * SEGMENTS
    for c in tl.static_range(CHUNKS):
        segment = (c * CHUNK + tl.arange(0, CHUNK))[None, :, None]
        chunks = chunks + (tl.load(scales + real + segment, mask=segment < SEGMENTS, other=0.0),)
    return chunks


@triton.jit
def load_zeros(
    zeros, row, N: tl.constexpr, SEGMENTS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr
):
    """Zeros, two in a byte, of the rows: a tuple of tiles (len(row), CHUNK, 1)."""
    chunks = ()
    real = tl.minimum(row, N - 1)[:, None, None] * ((SEGMENTS + 1) // 2)
    for c in tl.static_range(CHUNKS):
        segment = (c * CHUNK + tl.arange(0, CHUNK))[None, :, None]
        byte = tl.load(zeros + real + segment // 2, mask=segment < SEGMENTS, other=0)
        chunks = chunks + ((byte.to(tl.int32) >> (segment % 2 * 4)) & 15,)
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
    """`scaled_input` of gemv.py for tiles as `load_columns` makes them, each divided by the 2ᵖ that
    its codes are multiplied by."""
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
            scaled = scaled + (value * (1.0 / (1 << (i % (per // 2) * BITS))),)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(tl.reshape(squares, (CHUNK * WORDS,)), axis=0) / K + eps)
    return scaled, inverse


@triton.jit
def code_floats(words, zero, exponent, i: tl.constexpr, BITS: tl.constexpr):
    """(code i of each word - zero) · 2ᵖ in float32, exact; p: `i % (PER / 2) · BITS`. exponent:
    EXPONENT, which is an argument of the kernel because the assembler makes two instructions of
    an and-or with two numbers that it knows."""
    half: tl.constexpr = 16 // BITS
    shift: tl.constexpr = i % half * BITS
    mask: tl.constexpr = ((1 << BITS) - 1) << shift
    part = words if i < half else words >> 16
    value = ((part & mask) | exponent).to(tl.float32, bitcast=True)
    return value - (8388608.0 + zero * (1 << shift))


@triton.jit
def packed_multiply(
    words, scales, zeros, x, exponent, ROWS: tl.constexpr, BITS: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr, GROUPED: tl.constexpr, ZEROS: tl.constexpr,
):  # fmt: skip
    """(ROWS,) float32: each row times x, with the scales of groups."""
    per: tl.constexpr = 32 // BITS
    total = tl.zeros((ROWS, CHUNK, WORDS), tl.float32)
    for c in tl.static_range(CHUNKS):
        part = tl.zeros((ROWS, CHUNK, WORDS), tl.float32)
        # as wide as the words before it is computed with: 2²³ + zero · 2ᵖ stays in its thread
        zero = 1.0 * (1 << (BITS - 1))
        if ZEROS:
            zero = tl.broadcast_to(zeros[c].to(tl.float32), (ROWS, CHUNK, WORDS))
        for i in tl.static_range(per):
            part += code_floats(words[c], zero, exponent, i, BITS) * x[c * per + i]
        if GROUPED:
            total += part * scales[c].to(tl.float32)
        else:
            total += part
    return tl.sum(tl.reshape(total, (ROWS, CHUNK * WORDS)), axis=1)
