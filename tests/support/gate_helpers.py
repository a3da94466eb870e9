"""Setups for the gate and the variants, a gate on one, and variants that are spoiled on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from mini_engine.bench.decode_setup import DecodeSetup, Variant, build_setup  # noqa: E402
from mini_engine.cuda.graphs.backend import graphs_for  # noqa: E402
from mini_engine.cuda.weights import random_weights  # noqa: E402
from tests.support.torch_helpers import FAMILIES  # noqa: E402


def setup_of(
    family: str = "qwen3",
    dtype: torch.dtype = torch.float32,
    *,
    batch: int = 2,
    context: int = 40,
    room: int = 176,
    device: str = "cpu",
    seed: int = 0,
    hidden_size: int = 16,
) -> DecodeSetup:
    # head_dim 32: the least that the fused attention takes
    config = replace(
        FAMILIES[family], max_position_embeddings=256, vocab_size=200, head_dim=32,
        hidden_size=hidden_size,
    )  # fmt: skip
    weights = random_weights(config, torch.device(device), dtype, seed=seed)
    return build_setup(graphs_for(device), weights, batch, context, room)


@dataclass
class Spoiled:
    """A variant with something done to its logits or to the tokens that it says it sampled."""

    variant: Variant
    spoil: Callable[[torch.Tensor], torch.Tensor] = lambda logits: logits
    spoil_tokens: Callable[[torch.Tensor], torch.Tensor] = lambda tokens: tokens
    steps_a_call: int = 1

    @property
    def outputs(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [(self.spoil(one), self.spoil_tokens(two)) for one, two in self.variant.outputs]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.variant, name)
