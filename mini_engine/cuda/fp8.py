"""A KV cache in fp8, in PyTorch: what the plain model does, and the kernels' references.

    stored = e4m3(x / scale)      read = stored · scale

e4m3 (Micikevicius et al. 2022, arXiv 2209.05433) has a sign, 4 bits of exponent (bias 7) and 3 of
mantissa: normal numbers from 2^-6 to 448, rounded by at most 2^-4 of themselves, and multiples of
2^-9 below. What lies beyond ±448 is stored as ±448: a NaN would spread to every later token.

There is a scale for each KV head of K and of V, (2, kv_heads) float32 a layer; None stands for a
cache in the model's own dtype. They are measured once, when a model is loaded, by a prefill of
tokens that never change, so a text does not depend on what was asked before or beside it. vLLM 0.33
takes scales from the checkpoint, where it has some, and else 1. kernels/e4m3.py is the same inside
kernels, bit for bit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

FP8 = torch.float8_e4m3fn
LARGEST = 448.0
HEADROOM = 2.0  # a text may reach further than the tokens that were measured
MEASURED_TOKENS = 128


def scale_for(largest: float) -> float:
    """The scale of a head whose largest number, so far, was this: the smallest power of two that
    leaves HEADROOM. Under a power of two nothing is rounded but the mantissa, and scaled back
    nothing at all. It costs nothing: e4m3 rounds relative to the number, whatever its binade."""
    if largest == 0:
        return 1.0
    mantissa, exponent = math.frexp(HEADROOM * largest / LARGEST)
    return math.ldexp(1.0, exponent - (mantissa == 0.5))


def measured_tokens(vocab_size: int, max_position_embeddings: int) -> list[int]:
    """Tokens from all over the vocabulary, in a fixed order (steps of the golden ratio): a scale
    needs the extremes of keys and values, not sense."""
    count = min(MEASURED_TOKENS, max_position_embeddings)
    return [int(i * 0.6180339887498949 % 1 * vocab_size) for i in range(1, count + 1)]


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
