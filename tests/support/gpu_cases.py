"""Every kernel once, at shapes that fill no tile, held against its reference: what a GPU is asked
first, in seconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from unittest import mock

import torch
from torch import Tensor

from mini_engine.cuda.kernels import (
    activation,
    attention,
    fused_attention,
    head,
    linear,
    norm,
    pick,
    prefill,
    rope,
)
from mini_engine.cuda.kernels.paged import Heads
from tests.support.kernel_cases import NAN, Paged, assert_close, paged, rotary

ROOMS = (activation, attention, fused_attention, head, linear, norm, pick, prefill, rope)
EPS = 1e-6


class Make:
    """Makes the inputs of a case: the same random numbers on every device."""

    def __init__(self, device: str, dtype: torch.dtype) -> None:
        self.device, self.dtype = device, dtype
        torch.manual_seed(0)

    def randn(self, *shape: int) -> Tensor:
        return self.there(torch.randn(*shape).to(self.dtype))

    def matrix(self, rows: int, width: int) -> Tensor:
        return self.there((torch.randn(rows, width) / width**0.5).to(self.dtype))

    def norm_weight(self, width: int) -> Tensor:
        return self.there((torch.rand(width) + 0.5).to(self.dtype))

    def unset(self, *shape: int) -> Tensor:
        return torch.full(shape, NAN, dtype=self.dtype, device=self.device)

    def ints(self, values: list[int] | list[list[int]], dtype: torch.dtype = torch.int32) -> Tensor:
        return self.there(torch.tensor(values, dtype=dtype))

    def there(self, tensor: Tensor) -> Tensor:
        return tensor.to(self.device)

    def paged(self, contexts: list[int], heads: Heads) -> Paged:
        kv = paged(contexts, heads.num_kv_heads, heads.head_dim, heads.block_size, self.dtype)
        names = ("k_cache", "v_cache", "block_table", "context_lens")
        return replace(kv, **{name: self.there(getattr(kv, name)) for name in names})

    def rotary(self, head_dim: int) -> tuple[Tensor, Tensor]:
        cos, sin = rotary(head_dim)
        return self.there(cos), self.there(sin)


# ---------------------------------------------------------------- the cases: outputs to compare


def norms(make: Make) -> list[Tensor]:
    x, residual, norm_weight = make.randn(3, 100), make.randn(3, 100), make.norm_weight(100)
    first, second = make.unset(3, 100), make.unset(3, 100)
    norm.rms_norm(first, x, norm_weight, EPS)
    norm.add_rms_norm(second, residual, x, norm_weight, EPS)
    return [first, second, residual]


def activations(make: Make) -> list[Tensor]:
    out = make.unset(3, 100)
    activation.silu_mul(out, make.randn(3, 200))
    return [out]


def products(make: Make) -> list[Tensor]:
    """A width of 100 is multiplied in registers, one of 600 in bf16 by tensor cores."""
    outputs = []
    for tokens, width in ((1, 100), (3, 100), (1, 600), (3, 600)):
        x, norm_weight, bias = make.randn(tokens, width), make.norm_weight(width), make.randn(12)
        plain, normed, gated = (make.unset(tokens, n) for n in (12, 12, 6))
        residual, weight = make.randn(tokens, 12), make.matrix(12, width)
        linear.linear(plain, x, weight, bias)
        linear.norm_linear(normed, x, norm_weight, weight, EPS, bias)
        linear.linear_add(residual, x, weight)
        linear.norm_gate_up_silu_mul(gated, x, norm_weight, weight, EPS)
        outputs += [plain, normed, residual, gated]
    return outputs


HEADS = Heads(4, 2, 32, 5)
CONTEXTS = [1, 0, 37, 20]  # no multiples of a block or a tile; 0 is a padded row
Q = HEADS.num_heads * HEADS.head_dim


def last_slots(make: Make, kv: Paged) -> Tensor:
    return make.ints([own[-1] if own else 0 for own in kv.slots])


def rope_and_write(make: Make) -> list[Tensor]:
    outputs = []
    for norms in ([], [make.norm_weight(HEADS.head_dim), make.norm_weight(HEADS.head_dim)]):
        kv, q = make.paged(CONTEXTS, HEADS), make.unset(4, Q)
        positions = (kv.context_lens - 1).clamp(min=0)
        rope.rope_kv_write(
            *(q, kv.k_cache, kv.v_cache, make.randn(4, HEADS.qkv_size), positions),
            *(last_slots(make, kv), *make.rotary(HEADS.head_dim), *norms),
        )
        outputs += [q, kv.k_cache[1:], kv.v_cache[1:]]  # block 0 is nobody's
    return outputs


def decode(make: Make) -> list[Tensor]:
    kv, q = make.paged(CONTEXTS, HEADS), make.randn(4, Q)
    inputs = (q, kv.k_cache, kv.v_cache, kv.block_table, kv.context_lens)
    counters = make.ints([[0] * HEADS.num_kv_heads] * 4)
    out = make.unset(4, Q)
    attention.decode_attention(out, counters, *inputs, 3)
    return [out, counters]


def fused_decode(make: Make) -> list[Tensor]:
    outputs = []
    for norms in ([], [make.norm_weight(HEADS.head_dim), make.norm_weight(HEADS.head_dim)]):
        kv, out = make.paged(CONTEXTS, HEADS), make.unset(4, Q)
        counters = make.ints([[0] * HEADS.num_kv_heads] * 4)
        fused_attention.rope_kv_write_attention(
            *(out, kv.k_cache, kv.v_cache, counters, make.randn(4, HEADS.qkv_size)),
            *(kv.block_table, kv.context_lens, *make.rotary(HEADS.head_dim), 2, *norms),
        )
        outputs += [out, kv.k_cache[1:], kv.v_cache[1:], counters]
    return outputs


def prompts(make: Make) -> list[Tensor]:
    contexts, query_lens = [37, 9, 0, 20], [37, 1, 0, 6]
    kv, q = make.paged(contexts, HEADS), make.randn(sum(query_lens), Q)
    out = make.unset(len(q), Q)
    prefill.prefill_attention(
        *(out, q, kv.k_cache, kv.v_cache, kv.block_table), *(make.ints(query_lens), kv.context_lens)
    )
    return [out]


def tokens(make: Make) -> list[Tensor]:
    """The head, and both ways from its partials to a token."""
    rows, vocab, width = 3, 21, 600
    programs = head.num_programs(vocab, width)
    values = torch.full((rows, programs), NAN, device=make.device)
    indices, logits = make.ints([[0] * programs] * rows), torch.full((rows, vocab), NAN)
    logits, picked = make.there(logits), make.ints([0] * rows, torch.int64)
    x, norm_weight, weight = (
        make.randn(rows, width),
        make.norm_weight(width),
        make.matrix(vocab, width),
    )
    head.norm_lm_head(values, indices, logits, x, norm_weight, weight, EPS)
    pick.pick_tokens(picked, values, indices)

    advanced = make.ints([0] * rows, torch.int64)
    positions, lens = make.ints([7, 2, 0]), make.ints([8, 3, 0])
    slots, table = make.ints([11, 18, 0]), make.ints([[7, 2, 9], [4, 0, 0], [0, 0, 0]])
    fed = make.ints([1, 2, 0])
    pick.pick_and_advance(advanced, fed, positions, lens, slots, values, indices, table, 4, 12)
    return [logits, picked, advanced, fed, positions, lens, slots]


CASES: list[Callable[[Make], list[Tensor]]] = [
    norms, activations, products, rope_and_write, decode, fused_decode, prompts, tokens,
]  # fmt: skip


@contextmanager
def references_only() -> Iterator[None]:
    """Ops compute their references, even where the interpreter could run their kernels."""
    with ExitStack() as patches:
        for room in ROOMS:
            patches.enter_context(mock.patch.object(room, "runs_triton", return_value=False))
        yield


def check(case: Callable[[Make], list[Tensor]], device: str, dtype: torch.dtype) -> None:
    """One case on the device, against the references on the CPU."""
    got = case(Make(device, dtype))
    with references_only():
        expected = case(Make("cpu", dtype))
    for ours, theirs in zip(got, expected, strict=True):
        ours = ours.cpu()
        if ours.is_floating_point():
            assert ours.isnan().equal(theirs.isnan())  # nothing was written that should not be
            assert_close(ours.nan_to_num(), theirs.nan_to_num(), terms=100)
        else:
            assert ours.tolist() == theirs.tolist()
