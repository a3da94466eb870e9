"""How fast RoPE turns each pair of a head, plain or scaled as in Llama 3.

At position p, pair i turns by p * frequencies[i] (Su et al., RoFormer, arXiv 2104.09864, eq. 15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeScaling:
    """rope_type "llama3". Raises ValueError if the numbers do not fit together."""

    factor: float  # by which slow pairs turn more slowly
    low_freq_factor: float  # slow: fewer turns than this in the original context
    high_freq_factor: float  # fast, and left alone: more turns than this
    original_max_position_embeddings: int  # tokens of the original context

    def __post_init__(self) -> None:
        if not 0 < self.low_freq_factor < self.high_freq_factor or self.factor < 1:
            raise ValueError(f"{self}: expected factor >= 1, low_freq_factor < high_freq_factor")


@dataclass(frozen=True)
class RopeJson:
    """rope_scaling or rope_parameters of a config.json."""

    rope_type: Literal["default", "llama3"] | None = None
    type: Literal["default", "llama3"] | None = None  # the older key; transformers reads both
    rope_theta: float | None = None
    partial_rotary_factor: Literal[1] = 1  # RoPE turns whole heads here
    factor: float | None = None


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[float, ...]:
    """head_dim / 2 floats, 64-bit, fastest first. Llama 3 divides slow ones by `factor`, keeps fast
    ones and interpolates between them (transformers, `_compute_llama3_parameters`)."""
    plain = tuple(theta ** (-2 * i / head_dim) for i in range(head_dim // 2))
    if scaling is None:
        return plain
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    stretched = []
    for frequency in plain:
        turns = scaling.original_max_position_embeddings * frequency / (2 * math.pi)
        keep = min(1.0, max(0.0, (turns - low) / (high - low)))
        stretched.append(keep * frequency + (1 - keep) * frequency / scaling.factor)
    return tuple(stretched)
