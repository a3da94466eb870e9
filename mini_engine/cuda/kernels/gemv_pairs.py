"""The GEMV's product with bf16 read two at a time: a word of 32 bits widened by a shift and a mask.

    low = word << 16, high = word & 0xffff0000, both read as float32

A bf16 is the upper half of a float32, so these are the two numbers exactly, and the product is the
one of gemv.py up to the order of its sum. The compiler widens the upper number of a word with two
instructions where the mask needs one.

In:  weight, norm's weight and x as int32 tensors of half the width (`Tensor.view`). K, CHUNK count
     words here: half of the numbers. The weight comes through `load_rows`, gains `load_vector`.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def low_of(word):
    """The number at the even column, float32."""
    return (word << 16).to(tl.float32, bitcast=True)


@triton.jit
def high_of(word):
    """The number at the odd column, float32."""
    return (word & -65536).to(tl.float32, bitcast=True)


@triton.jit
def pairs_input(
    raw, gains, eps, K: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, NORM: tl.constexpr
):
    """(scaled, inverse) as `scaled_input` gives them, of words that are loaded already: a chunk is
    a pair of float32 tiles (CHUNK,), the even columns and the odd ones."""
    scaled = ()
    squares = tl.zeros((CHUNK,), tl.float32)
    for c in tl.static_range(CHUNKS):
        low, high = low_of(raw[c]), high_of(raw[c])
        if NORM:
            squares += low * low + high * high
            low, high = low * low_of(gains[c]), high * high_of(gains[c])
        scaled = scaled + ((low, high),)
    inverse = 1.0
    if NORM:
        inverse = tl.rsqrt(tl.sum(squares, axis=0) / (2 * K) + eps)
    return scaled, inverse


@triton.jit
def pairs_multiply(rows, x, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """(ROWS,) float32, as `multiply`; rows: CHUNKS tiles (ROWS, CHUNK) of words."""
    products = tl.zeros((ROWS, CHUNK), tl.float32)
    for c in tl.static_range(CHUNKS):
        products += low_of(rows[c]) * x[c][0][None, :]
        products += high_of(rows[c]) * x[c][1][None, :]
    return tl.sum(products, axis=1)
