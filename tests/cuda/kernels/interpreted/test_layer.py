"""Whole steps of nine kernels a layer and of five: the plain model's numbers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_engine.cuda.attention import Attention, DecodeAttention, HostAttention
from mini_engine.cuda.fused import FusedModel, PagedAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import named_shape
from tests.support.kernel_cases import assert_close, paged

BLOCK_SIZE = 4
CONFIG = replace(
    named_shape("qwen3-0.6b"), hidden_size=16, intermediate_size=12, num_layers=1,
    num_heads=2, num_kv_heads=1, head_dim=32, vocab_size=37, max_position_embeddings=32,
    eos_token_ids=(),
)  # fmt: skip


@pytest.mark.parametrize(("rows", "kernels"), [(1, 9), (4, 9), (4, 5), (17, 5)])
def test_a_decode_step_in_kernels_is_the_plain_models(rows: int, kernels: int) -> None:
    """The last row is padding. Up to 4 rows the products are kernels of ours, then a library's."""
    torch.manual_seed(rows)
    contexts = [1 + 7 * i % 23 for i in range(rows - 1)] + [0 if rows > 1 else 21]
    kv = paged(contexts, 1, 32, BLOCK_SIZE, torch.float32)
    weights = random_weights(CONFIG, torch.device("cpu"), torch.float32, seed=1)
    lens = kv.context_lens
    live = lens > 0
    slots = torch.tensor([own[-1] if own else 0 for own in kv.slots], dtype=torch.int32)
    last = torch.arange(rows, dtype=torch.int32)
    positions = (lens - 1).clamp(min=0)
    attention = DecodeAttention(kv.block_table.shape[1], BLOCK_SIZE)

    def step(kind: type[Model], **how: Any) -> tuple[Tensor, Tensor, StepInputs, Tensor]:
        """Logits, tokens, the next step's inputs, and the keys."""
        given = (2 * last, positions, slots, lens.clamp(max=1), lens, last, kv.block_table)
        inputs = StepInputs(*(tensor.clone() for tensor in given))
        keys, values = (cache.clone() for cache in (kv.k_cache, kv.v_cache))
        model = kind(weights, KVCache((keys,), (values,)), **how)
        logits, tokens = model.next_step(model.body(inputs, attention), inputs)
        return logits[live], tokens[live], inputs, keys[1:]

    with torch.no_grad():
        wanted, tokens, after, keys = step(Model)
        logits, ours, inputs, written = step(FusedModel, kernels_per_layer=kernels)
    assert_close(logits, wanted, terms=64)
    assert ours.tolist() == tokens.tolist()
    for name, tensor in vars(after).items():
        assert torch.equal(vars(inputs)[name][live], tensor[live]), name
    torch.testing.assert_close(written, keys, equal_nan=True, rtol=0, atol=1e-4)


def test_a_mixed_step_in_kernels_is_the_plain_models() -> None:
    """A decode, a chunk with a cached context and a whole prompt, then two rows of padding."""
    torch.manual_seed(18)
    new, contexts = [1, 5, 9], [20, 12, 9]
    kv = paged(contexts, 1, 32, BLOCK_SIZE, torch.float32)
    weights = random_weights(CONFIG, torch.device("cpu"), torch.float32, seed=1)
    starts = [context - n for context, n in zip(contexts, new, strict=True)]
    positions = [p for s, n in zip(starts, new, strict=True) for p in range(s, s + n)]
    slots = [p for own, s in zip(kv.slots, starts, strict=True) for p in own[s:]]
    arrays = ([3 * i for i in range(11)] + [1] * 6, [*positions, 0, 0], [*slots, 0, 0], new,
              contexts, [0, 5, 14])  # fmt: skip
    inputs = StepInputs(*(torch.tensor(a, dtype=torch.int32) for a in arrays), kv.block_table)

    def step(kind: type[Model], attention: Attention, **how: Any) -> tuple[Tensor, Tensor]:
        cache = KVCache((kv.k_cache.clone(),), (kv.v_cache.clone(),))
        model = kind(weights, cache, **how)
        return model.head(model.body(inputs, attention), inputs)

    with torch.no_grad():
        wanted, tokens = step(Model, HostAttention(tuple(new), tuple(contexts), BLOCK_SIZE))
        logits, ours = step(FusedModel, PagedAttention(), kernels_per_layer=5)
    assert_close(logits, wanted, terms=64)
    assert ours.tolist() == tokens.tolist()
