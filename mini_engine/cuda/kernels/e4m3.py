"""e4m3 inside kernels: how a KV cache in fp8 is written and read (cuda/fp8.py: in PyTorch).

In:  kv_scales (2, kv_heads) float32: those of K, then those of V. Nothing in a step writes them, so
     kernels may read them above `pdl_wait`. None for a cache in the model's own dtype.

Kernels see the bytes as int8 and convert them with integer instructions, which run everywhere. No
key or value is multiplied by its scale: attention puts K's into the scale of the scores and V's
into the weighted sum, once a head.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def head_scale(kv_scales, head):
    """One scale: of K at kv_head, of V at KV_HEADS + kv_head. 1 where there are none."""
    if kv_scales is None:
        return 1.0
    else:
        return tl.load(kv_scales + head)


@triton.jit
def numbers(x, kind: tl.constexpr):
    """What was loaded from a cache, in the dtype that a product takes; exact. A float16 with the
    same exponent and mantissa bits is 2^-8 of the number, subnormals too."""
    if x.dtype == tl.int8:
        bits = (x.to(tl.int32) << 7) & 0xBF80  # the sign was extended
        return (bits.to(tl.int16).to(tl.float16, bitcast=True).to(tl.float32) * 256.0).to(kind)
    else:
        return x


@triton.jit
def rows_of_numbers(x, inside, kind: tl.constexpr):
    """`numbers` of loaded rows (tile, D), inside (tile,), for an operand of `tl.dot`; zeros in rows
    that are not inside. Without the masking the compiler copies bytes to shared memory in eights
    and reads them one by one (LDS.S8)."""
    if x.dtype == tl.int8:
        x = numbers(x, kind)
        return tl.where(inside[:, None], x, tl.zeros_like(x))
    else:
        return x


@triton.jit
def load_numbers(at, inside, kind: tl.constexpr):
    """Rows of a cache as numbers, zeros where not inside. at (tile, D) pointers, inside (tile,)."""
    return rows_of_numbers(tl.load(at, mask=inside[:, None], other=0.0), inside, kind)


@triton.jit
def cached(x, scale, kind: tl.constexpr):
    """x in the dtype of a cache: int8 stands for e4m3, and then x is divided by its scale first. To
    nearest, ties to even: a normal number in the bits of a float32; below 2^-6, adding 2^14 rounds
    to multiples of 2^-9 and leaves their count in the last bits."""
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
