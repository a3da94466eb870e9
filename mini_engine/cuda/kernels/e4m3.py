"""A KV cache in fp8: one byte a number, and a scale for each KV head.

    stored = e4m3(x / scale)      read = stored · scale

e4m3 (Micikevicius et al. 2022, arXiv 2209.05433) has a sign, 4 bits of exponent (bias 7) and 3 of
mantissa: normal numbers from 2^-6 to 448, rounded by at most 2^-4 of themselves, and multiples of
2^-9 below. What lies beyond ±448 is stored as ±448. A cast would make NaN of it, and one NaN in a
cache spreads to every later token.

In:  kv_scales (2, kv_heads) float32: those of K, then those of V. Nothing in a step writes them, so
     kernels may read them above `pdl_wait`. None for a cache in the model's own dtype.

Kernels see the bytes as int8 and convert them with integer instructions. A GPU has instructions for
it from sm_89 on; these here run everywhere, in the interpreter too, and give the same bits.

Nobody divides a score or an output: attention multiplies K's scale into the scale of the scores and
V's into the weighted sum, once for each head.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0


def to_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    """x (..., kv_heads, D) as FP8 under the scale of each head, scale (kv_heads,)."""
    return (x.float() / scale[:, None]).clamp(-LARGEST, LARGEST).to(FP8)


def cast_like(x: Tensor, scales: Tensor | None, which: int) -> Tensor:
    """Keys (which = 0) or values (1), (T, kv_heads, D), as the cache stores them."""
    return x if scales is None else to_e4m3(x, scales[which])


def widened(rows: Tensor, scales: Tensor | None, which: int) -> Tensor:
    """The other way, in float32."""
    return rows.float() if scales is None else rows.float() * scales[which][:, None]


def as_bytes(cache: Tensor) -> Tensor:
    """What a kernel is given: the same memory, int8 where it is FP8."""
    return cache.view(torch.int8) if cache.dtype == FP8 else cache


# ---------------------------------------------------------------- in kernels


@triton.jit
def head_scale(kv_scales, head):
    """One scale: of K at kv_head, of V at KV_HEADS + kv_head. 1 where there are none."""
    if kv_scales is None:
        return 1.0
    else:
        return tl.load(kv_scales + head)


@triton.jit
def numbers(x, kind: tl.constexpr):
    """What was loaded from a cache, in the dtype that a product takes; exact. From sm_80 on.

    A float16 with the same exponent and mantissa bits is 2^-8 of the number, subnormals too.
    """
    if x.dtype == tl.int8:
        bits = (x.to(tl.int32) << 7) & 0xBF80  # the sign was extended
        return (bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(kind)
    else:
        return x


@triton.jit
def cached(x, scale, kind: tl.constexpr):
    """x in the dtype of a cache: int8 stands for e4m3, and then x is divided by its scale first.

    To nearest, ties to even, as torch casts. A normal number is rounded in the bits of a float32.
    Below 2^-6, adding 2^14 rounds to multiples of 2^-9 and leaves their count in the last bits.
    """
    if kind == tl.int8:
        x = x.to(tl.float32) / scale
        sign = (x.to(tl.int32, bitcast=True) >> 24) & 0x80
        size = tl.minimum(tl.abs(x), 448.0)
        bits = size.to(tl.int32, bitcast=True)
        normal = ((bits + 0x7FFFF + ((bits >> 20) & 1)) >> 20) - ((127 - 7) << 3)
        small = (size + 16384.0).to(tl.int32, bitcast=True) & 0xF
        return (tl.where(size < 0.015625, small, normal) | sign).to(tl.int8)
    else:
        return x.to(kind)
