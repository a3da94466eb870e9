"""A layer of a decoder out of nine kernels and out of five: the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_engine.cuda.attention import Attention, DecodeAttention, HostAttention
from mini_engine.cuda.fused import FusedModel, PagedAttention
from mini_engine.cuda.inputs import StepInputs
from mini_engine.cuda.kernels import activation, attention, fused_attention, linear, norm, rope
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.model import KVCache, Model
from mini_engine.cuda.weights import random_weights
from mini_engine.model.config import named_shape
from tests.support.kernel_cases import Paged, assert_close, paged, rotary

EPS = 1e-6
HEADS = Heads(4, 2, 32, 4)
HIDDEN, INNER = 16, 12  # small: the interpreter runs a program for each row of these weights


@dataclass(frozen=True)
class Weights:
    """One layer, Qwen3's kind."""

    norm_1: Tensor
    qkv: Tensor
    q_norm: Tensor
    k_norm: Tensor
    o: Tensor
    norm_2: Tensor
    gate_up: Tensor
    down: Tensor


def weights() -> Weights:
    q_size = HEADS.num_heads * HEADS.head_dim

    def matrix(rows: int, width: int) -> Tensor:
        return torch.randn(rows, width) / width**0.5

    norms = [torch.rand(n) + 0.5 for n in (HIDDEN, HEADS.head_dim, HEADS.head_dim, HIDDEN)]
    return Weights(
        norms[0],
        matrix(HEADS.qkv_size, HIDDEN),
        norms[1],
        norms[2],
        matrix(HIDDEN, q_size),
        norms[3],
        matrix(2 * INNER, HIDDEN),
        matrix(HIDDEN, INNER),
    )


def nine(w: Weights, hidden: Tensor, kv: Paged, qkv: Tensor) -> Tensor:
    """Norm and QKV (given: the same in both), RoPE and KV write, attention, O, add and norm, gate
    and up, SiLU · mul, down; the closing addition belongs to the norm of the next layer."""
    slots = torch.tensor([own[-1] if own else 0 for own in kv.slots], dtype=torch.int32)
    positions = (kv.context_lens - 1).clamp(min=0)
    q = torch.empty(len(hidden), HEADS.num_heads * HEADS.head_dim)
    rope.rope_kv_write(
        *(q, kv.k_cache, kv.v_cache, qkv, positions, slots, *rotary(HEADS.head_dim)),
        *(w.q_norm, w.k_norm, EPS),
    )
    mixed = torch.empty_like(q)
    counters = torch.zeros(len(hidden), HEADS.num_kv_heads, dtype=torch.int32)
    attention.decode_attention(
        *(mixed, counters, q, kv.k_cache, kv.v_cache, kv.block_table, kv.context_lens, 2)
    )
    projected, normed = torch.empty_like(hidden), torch.empty_like(hidden)
    linear.linear(projected, mixed, w.o)
    norm.add_rms_norm(normed, hidden, projected, w.norm_2, EPS)
    both, inner = torch.empty(len(hidden), 2 * INNER), torch.empty(len(hidden), INNER)
    linear.linear(both, normed, w.gate_up)
    activation.silu_mul(inner, both)
    linear.linear(projected, inner, w.down)
    return hidden + projected


def five(w: Weights, hidden: Tensor, kv: Paged, qkv: Tensor) -> Tensor:
    """Norm + QKV (given), RoPE to attention, O + residual, norm to SiLU · mul, down + residual."""
    mixed = torch.empty(len(hidden), HEADS.num_heads * HEADS.head_dim)
    counters = torch.zeros(len(hidden), HEADS.num_kv_heads, dtype=torch.int32)
    fused_attention.rope_kv_write_attention(
        *(mixed, kv.k_cache, kv.v_cache, counters, qkv, kv.block_table, kv.context_lens),
        *(*rotary(HEADS.head_dim), 3, w.q_norm, w.k_norm, EPS),
    )
    linear.linear_add(hidden, mixed, w.o)
    inner = torch.empty(len(hidden), INNER)
    linear.norm_gate_up_silu_mul(inner, hidden, w.norm_2, w.gate_up, EPS)
    linear.linear_add(hidden, inner, w.down)
    return hidden


@pytest.mark.parametrize("contexts", [[21], [18, 0, 6, 33]])
def test_five_kernels_a_layer_compute_what_nine_do(contexts: list[int]) -> None:
    torch.manual_seed(len(contexts))
    w, hidden = weights(), torch.randn(len(contexts), HIDDEN)
    kv = paged(contexts, HEADS.num_kv_heads, HEADS.head_dim, HEADS.block_size, torch.float32)
    other = Paged(kv.k_cache.clone(), kv.v_cache.clone(), kv.block_table, kv.context_lens, kv.slots)
    qkv = linear.product_reference(hidden, w.norm_1, w.qkv, None, EPS)
    # by nine, padded rows write to slot 0: they are not compared, and nobody reads the null block
    live = kv.context_lens > 0
    separate, merged = nine(w, hidden.clone(), kv, qkv), five(w, hidden.clone(), other, qkv)
    assert_close(merged[live], separate[live], terms=64)
    assert not merged.isnan().any()
    torch.testing.assert_close(other.k_cache[1:], kv.k_cache[1:], equal_nan=True)
    torch.testing.assert_close(other.v_cache[1:], kv.v_cache[1:], equal_nan=True)


CONFIG = replace(
    named_shape("qwen3-0.6b"), hidden_size=HIDDEN, intermediate_size=INNER, num_layers=1,
    num_heads=2, num_kv_heads=1, head_dim=32, vocab_size=37, max_position_embeddings=32,
    eos_token_ids=(),
)  # fmt: skip


def test_a_step_around_a_librarys_products_is_the_plain_models() -> None:
    """17 requests, one of them padding, in the kernels that run above 4, and what they leave."""
    torch.manual_seed(17)
    contexts = [1 + 7 * i % 23 for i in range(16)] + [0]
    kv = paged(contexts, 1, 32, HEADS.block_size, torch.float32)
    weights = random_weights(CONFIG, torch.device("cpu"), torch.float32, seed=1)
    lens = kv.context_lens
    slots = torch.tensor([own[-1] if own else 0 for own in kv.slots], dtype=torch.int32)
    last = torch.arange(17, dtype=torch.int32)
    positions = (lens - 1).clamp(min=0)
    attention = DecodeAttention(kv.block_table.shape[1], HEADS.block_size)

    def step(kind: type[Model], **how: Any) -> tuple[Tensor, Tensor, StepInputs, Tensor]:
        """Logits, tokens, the next step's inputs, and the keys."""
        given = (last * 2, positions, slots, lens.clamp(max=1), lens, last, kv.block_table)
        inputs = StepInputs(*(tensor.clone() for tensor in given))
        keys, values = (cache.clone() for cache in (kv.k_cache, kv.v_cache))
        model = kind(weights, KVCache((keys,), (values,)), **how)
        logits, tokens = model.next_step(model.body(inputs, attention), inputs)
        return logits[:16], tokens[:16], inputs, keys[1:]

    with torch.no_grad():
        wanted, tokens, after, keys = step(Model)
        logits, ours, inputs, written = step(FusedModel, kernels_per_layer=5)
    assert_close(logits, wanted, terms=64)
    assert ours.tolist() == tokens.tolist()
    for name, tensor in vars(after).items():
        assert torch.equal(vars(inputs)[name][:16], tensor[:16]), name
    torch.testing.assert_close(written, keys, equal_nan=True, rtol=0, atol=1e-4)


def test_a_mixed_step_in_kernels_is_the_plain_models() -> None:
    """A decode, a chunk with a cached context and a whole prompt, then two rows of padding."""
    torch.manual_seed(18)
    new, contexts = [1, 5, 9], [20, 12, 9]
    kv = paged(contexts, 1, 32, HEADS.block_size, torch.float32)
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
        wanted, tokens = step(Model, HostAttention(tuple(new), tuple(contexts), HEADS.block_size))
        logits, ours = step(FusedModel, PagedAttention(), kernels_per_layer=5)
    assert_close(logits, wanted, terms=64)
    assert ours.tolist() == tokens.tolist()
