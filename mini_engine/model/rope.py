"""How fast RoPE turns each pair of a head, plain or scaled as in Llama 3.

In:  head_dim, the base (theta), and Llama 3's four numbers or None.
Out: head_dim / 2 frequencies in radians per position. At position p, pair i turns by
     p * frequencies[i] (Su et al., RoFormer, arXiv 2104.09864, eq. 15).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from mini_engine.files import in_short
from mini_engine.model.fields import Fields, refuse_two


@dataclass(frozen=True)
class RopeScaling:
    """rope_type "llama3". Raises ValueError if the numbers do not fit together."""

    factor: float  # by which slow pairs turn more slowly
    low_freq_factor: float  # slow: fewer turns than this in the original context
    high_freq_factor: float  # fast, and left alone: more turns than this
    original_max_position_embeddings: int  # tokens of the original context

    def __post_init__(self) -> None:
        for name in ("factor", "low_freq_factor", "high_freq_factor"):
            if not math.isfinite(getattr(self, name)):
                raise ValueError(f"rope_scaling: {name} is {getattr(self, name)}, expected finite")
        if not 0 < self.low_freq_factor < self.high_freq_factor:
            raise ValueError(
                f"rope_scaling needs 0 < low_freq_factor < high_freq_factor, not "
                f"{self.low_freq_factor} and {self.high_freq_factor}"
            )
        if self.factor < 1 or self.original_max_position_embeddings < 1:
            raise ValueError(
                "rope_scaling needs factor >= 1 and original_max_position_embeddings >= 1, not "
                f"{self.factor} and {in_short(self.original_max_position_embeddings)}"
            )


def rope_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None) -> tuple[float, ...]:
    """head_dim / 2 floats, 64-bit, fastest first.

    Llama 3 divides slow ones by `factor`, keeps fast ones and interpolates between them; see
    transformers, `modeling_rope_utils._compute_llama3_parameters`.
    """
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


def read_rope_theta(config: Fields, absent: float | None) -> float:
    """The base, from a config.json. `absent` is its value if the file lacks it; None: an error."""
    rope, name = _rope(config), "rope_theta"
    if rope.given(name) and config.given(name) and rope.value(name) != config.value(name):
        refuse_two(name, config.value(name), f"that of {_rope_name(config)}", rope.value(name))
    return (rope if rope.given(name) else config).number(name, absent)


def read_rope_scaling(config: Fields) -> RopeScaling | None:
    """The scaling, from a config.json. ValueError for a type that is not computed here."""
    rope = _rope(config)
    # The older key is type; transformers reads both.
    rope_type = rope.text(rope.spelling("rope_type", "type"), "default")
    if (
        rope.number("partial_rotary_factor", 1.0) != 1.0
        or config.number("partial_rotary_factor", 1.0) != 1.0
    ):
        raise ValueError("partial_rotary_factor is set: not supported, RoPE turns whole heads")
    if rope_type == "default":
        if rope.given("factor") and not (rope.given("rope_type") or rope.given("type")):
            raise ValueError(
                f"rope_scaling has factor {in_short(rope.value('factor'))} and no rope_type: say "
                "which, 'llama3' is computed here"
            )
        return None
    if rope_type != "llama3":
        raise ValueError(
            f"rope_type {in_short(rope_type)} is not supported: only 'default' and 'llama3'"
        )
    return RopeScaling(
        factor=rope.number("factor"),
        low_freq_factor=rope.number("low_freq_factor"),
        high_freq_factor=rope.number("high_freq_factor"),
        original_max_position_embeddings=rope.integer("original_max_position_embeddings"),
    )


def _rope(config: Fields) -> Fields:
    return config.object(_rope_name(config))


def _rope_name(config: Fields) -> str:
    """transformers 4 writes rope_theta and rope_scaling; 5 writes both in rope_parameters."""
    return config.spelling("rope_scaling", "rope_parameters")
