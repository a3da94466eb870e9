"""A KV cache in fp8, in PyTorch: what the plain model does, and the kernels' references.

In:  scales (2, kv_heads) float32 of a layer, first of K and then of V (model/kv_fp8.py); None for a
     cache in the model's own dtype. kernels/e4m3.py is the same inside kernels, bit for bit.
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0


def to_e4m3(x: Tensor, scale: Tensor) -> Tensor:
    """x (..., kv_heads, D) as FP8 under the scale of each head, (kv_heads,). Beyond the range it is
    the largest number; the cast alone would make NaN of it."""
    return (x.float() / scale[:, None]).clamp(-LARGEST, LARGEST).to(FP8)


def cast_like(x: Tensor, scales: Tensor | None, which: int) -> Tensor:
    """Keys (which = 0) or values (1), (T, kv_heads, D), as the cache stores them."""
    return x if scales is None else to_e4m3(x, scales[which])


def widened(rows: Tensor, scales: Tensor | None, which: int) -> Tensor:
    """The other way, in float32."""
    return rows.float() if scales is None else rows.float() * scales[which][:, None]


def as_bytes(cache: Tensor) -> Tensor:
    """The same memory, as int8 where it is FP8: kernels convert the bytes themselves."""
    return cache.view(torch.int8) if cache.dtype == FP8 else cache
