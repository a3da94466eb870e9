"""A Qwen3 of two layers, so small that tests decode with it, where LAB_DEVICE says: on the CPU,
with the emulator's graphs, or on a GPU."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

import torch
from torch import Tensor

from mini_engine.cuda.graphs.backend import GraphBackend, graphs_for
from mini_engine.cuda.weights import Weights, random_weights
from mini_engine.model.config import named_shape

DEVICE = os.environ.get("LAB_DEVICE", "cpu")
TINY = replace(
    named_shape("qwen3-0.6b"),
    name="tiny", hidden_size=16, intermediate_size=24, num_layers=2, num_heads=4, num_kv_heads=2,
    head_dim=8, vocab_size=61, max_position_embeddings=40, eos_token_ids=(),
)  # fmt: skip


@cache
def graphs() -> GraphBackend:
    return graphs_for(DEVICE)


@cache
def weights() -> Weights:
    return random_weights(TINY, graphs().device, torch.float32, seed=3)


def ints(values: Sequence[object]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32, device=graphs().device)
