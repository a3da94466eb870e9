"""The alternatives of the GEMV kernels against the same references, in bf16 and beyond their rules.

Results go to float32 tensors here, so a product in bf16 halves must be as good as one in float32:
rounding x · gain to one bf16 would be 2^-9 off, thousands of times more than what is allowed.
"""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

from mini_engine.cuda.kernels import gemv, gemv_choice, head, linear, pick, plans
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.kernels.plans import KernelPlan
from tests.cuda.kernels.interpreted.test_linear import EPS, tensors
from tests.support.kernel_cases import NAN, assert_close

BF16 = torch.bfloat16
PLANS = {
    "pairs": KernelPlan(product="pairs"),
    "dot": KernelPlan(product="dot"),
    "x-in-l1": KernelPlan(x_in_l1=True),
}
every_plan = pytest.mark.parametrize("name", list(PLANS))
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"

# tokens, rows of the weight, width, plan: rows beyond the weight, columns beyond it, many chunks
CASES = [
    (1, 10, 512, GemvPlan(rows=8, warps=2, chunk=512, chunks=1)),
    (2, 7, 500, GemvPlan(rows=4, warps=1, chunk=256, chunks=2)),
    (3, 3, 520, GemvPlan(rows=2, warps=4, chunk=256, chunks=3)),
    (4, 2, 768, GemvPlan(rows=1, warps=2, chunk=512, chunks=2)),
]


def some(*fast: tuple[str, int]) -> list[tuple[str, Any]]:
    """An alternative and one of CASES, by its tokens: these, or in the slow profile all."""
    every = [(name, case[0]) for name in PLANS for case in CASES]
    return [(name, CASES[tokens - 1]) for name, tokens in (every if SLOW else fast)]


@pytest.mark.parametrize(
    ("name", "case"),
    some(
        ("dot", 1), ("dot", 2), ("dot", 3), ("dot", 4), ("pairs", 2), ("pairs", 4), ("x-in-l1", 3)
    ),
)
def test_an_alternative_equals_the_reference_with_every_prologue_and_epilogue(
    name: str, case: tuple[int, int, int, GemvPlan]
) -> None:
    plan, (tokens, rows, width, gemv_plan) = PLANS[name], case
    x, norm_weight, weight, bias, residual = tensors(tokens, rows, width, BF16)
    assert not gemv_choice.variant_of(plan, gemv_plan, rows * width, x, weight).is_base
    for norm, offset, add in ((norm_weight, bias, False), (None, None, True)):
        out = residual.float() if add else torch.full((tokens, rows), NAN)
        expected = product_reference(x, norm, weight, offset, EPS)
        expected = expected + residual.float() if add else expected
        gemv_choice.launch_linear(out, x, norm, weight, offset, EPS, add, False, gemv_plan, plan)
        assert_close(out, expected, terms=4)


@pytest.mark.parametrize(("name", "case"), some(("dot", 2), ("pairs", 2), ("x-in-l1", 1)))
def test_gate_and_up_in_one_product_equal_the_reference(
    name: str, case: tuple[int, int, int, GemvPlan]
) -> None:
    plan, (tokens, rows, width, gemv_plan) = PLANS[name], case
    x, norm_weight, weight, _, _ = tensors(tokens, 2 * rows, width, BF16)
    halved = GemvPlan(
        max(1, gemv_plan.rows // 2), gemv_plan.warps, gemv_plan.chunk, gemv_plan.chunks
    )
    out = torch.full((tokens, rows), NAN)
    gemv_choice.launch_gate_up(out, x, norm_weight, weight, EPS, False, halved, plan)
    expected = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(out, expected, terms=16)


@every_plan
def test_the_head_of_an_alternative_finds_the_argmax_of_its_logits(name: str) -> None:
    x, norm_weight, weight, _, _ = tensors(2, 5, 256, BF16)
    parts = head.num_programs(5, 256)
    values, indices = torch.full((2, parts), NAN), torch.full((2, parts), -1, dtype=torch.int32)
    logits, tokens = torch.full((2, 5), NAN), torch.full((2,), -1)
    head.norm_lm_head(values, indices, x, norm_weight, weight, EPS, logits, False, name)
    assert_close(logits, product_reference(x, norm_weight, weight, None, EPS), terms=4)
    pick.pick_tokens(tokens, values, indices)
    assert tokens.tolist() == logits.argmax(dim=-1).tolist()


def test_a_number_of_16_bits_is_multiplied_exactly_in_two_halves() -> None:
    """Weights of 0 and 1 pick x · gain out of the product: all 16 bits of it must come back."""
    width = 256
    x = (1 + torch.arange(width) % 128 / 128).to(BF16)[None, :]
    gain = (1 + (37 * torch.arange(width) + 5) % 128 / 128).to(BF16)
    picks = torch.arange(3, 8 * 31 + 3, 31)
    weight = torch.zeros(8, width, dtype=BF16)
    weight[torch.arange(8), picks] = 1
    out = torch.full((1, 8), NAN)
    shape = GemvPlan(rows=8, warps=1, chunk=256, chunks=1)
    gemv_choice.launch_linear(out, x, gain, weight, None, 0.0, False, False, shape, PLANS["dot"])
    exact = (x.double() * gain.double())[0, picks]
    assert (exact.bfloat16().double() != exact).any()  # else one half would do
    rms = x.double().square().mean().sqrt()
    torch.testing.assert_close(out[0].double(), exact / rms, rtol=4e-7, atol=0)


@pytest.mark.parametrize("name", ["pairs", "dot"])
def test_what_an_alternative_cannot_take_is_widened_and_still_right(name: str) -> None:
    """float32; for pairs an odd width, for dot chunks of less than 256."""
    shape = GemvPlan(rows=4, warps=4, chunk=32, chunks=4)
    for width, dtype in ((128, torch.float32), (99 if name == "pairs" else 128, BF16)):
        x, _, weight, _, residual = tensors(1, 5, width, dtype)
        variant = gemv_choice.variant_of(PLANS[name], shape, 512, x, weight)
        assert variant.is_base
        assert variant.gemv == shape
        out = residual.clone()
        gemv_choice.launch_linear(out, x, None, weight, None, EPS, True, False, shape, PLANS[name])
        expected = product_reference(x, None, weight, None, EPS) + residual.float()
        assert_close(out, expected.to(dtype), terms=4)


def test_fewer_elements_a_thread_are_more_warps_and_the_same_result(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = gemv.gemv_plan(4096, 1024)
    assert plan.warps == 4
    x, _, weight, _, residual = tensors(1, 1, 1024, BF16)
    short = KernelPlan(thread_elements=32)
    assert gemv_choice.variant_of(short, plan, 8 * 1024, x, weight).gemv.warps == 8
    monkeypatch.setitem(plans.PLANS, "this", short)
    outs = [residual.clone(), residual.clone()]
    for out, name in zip(outs, ("base", "this"), strict=True):
        linear.linear_add(out, x, weight, False, name)
    torch.testing.assert_close(*outs, rtol=0, atol=0)


@pytest.mark.parametrize("name", ["pairs", "dot", "x-in-l1"])
def test_the_ops_take_an_alternative_by_name(name: str) -> None:
    x, norm_weight, weight, bias, residual = tensors(1, 2, 256, BF16)
    summed, out, half = residual.clone(), torch.full_like(residual, NAN), torch.full((1, 1), NAN)
    linear.linear_add(summed, x, weight, False, name)
    linear.norm_linear(out, x, norm_weight, weight, EPS, bias, False, name)
    linear.norm_gate_up_silu_mul(half, x, norm_weight, weight, EPS, False, name)
    normed = product_reference(x, norm_weight, weight, None, EPS)
    assert_close(summed, (product_reference(x, None, weight, residual[0], EPS)).to(BF16))
    assert_close(out, (normed + bias.float()).to(BF16))
    assert_close(half, silu_mul_reference(normed), terms=16)
