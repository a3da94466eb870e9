"""gemv.py, skinny.py and linear.py. Plans are given here: a tiny weight's own plan is one row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from mini_engine.cuda.kernels import gemv, linear, skinny
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.kernels.skinny import SkinnyPlan
from tests.support.kernel_cases import NAN, assert_close

both = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
EPS = 1e-6


def tensors(tokens: int, rows: int, width: int, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    """x, norm_weight, weight, bias and a residual, such that products have size 1."""
    torch.manual_seed(tokens * rows + width)
    x, weight = torch.randn(tokens, width), torch.randn(rows, width) / width**0.5
    norm_weight, bias, residual = (
        torch.rand(width) + 0.5,
        torch.randn(rows),
        torch.randn(tokens, rows),
    )
    made = (x, norm_weight, weight, bias, residual)
    return tuple(tensor.to(dtype) for tensor in made)


# tokens, rows of the weight, width, plan: rows beyond the weight, columns beyond it, many chunks
GEMV_CASES = [
    (1, 12, 64, GemvPlan(rows=8, warps=4, chunk=64, chunks=1)),
    (3, 6, 100, GemvPlan(rows=4, warps=4, chunk=16, chunks=7)),
    (4, 4, 96, GemvPlan(rows=2, warps=4, chunk=32, chunks=3)),
]
SKINNY_CASES = [
    (16, 20, 64, SkinnyPlan(chunk=32, split_width=64, splits=1)),
    (5, 16, 100, SkinnyPlan(chunk=16, split_width=112, splits=1)),
]


@both
@pytest.mark.parametrize(("tokens", "rows", "width", "plan"), [*GEMV_CASES, *SKINNY_CASES])
def test_every_prologue_and_epilogue_equals_the_reference(
    dtype: torch.dtype, tokens: int, rows: int, width: int, plan: Any
) -> None:
    x, norm_weight, weight, bias, residual = tensors(tokens, rows, width, dtype)
    launch = gemv.launch_linear if isinstance(plan, GemvPlan) else skinny.launch_skinny
    for norm, offset, add in ((None, None, False), (norm_weight, bias, False), (None, None, True)):
        out = residual.clone() if add else torch.full_like(residual, NAN)
        expected = product_reference(x, norm, weight, offset, EPS)
        expected = expected + residual.float() if add else expected
        launch(out, x, norm, weight, offset, EPS, add, False, plan)
        # the tensor cores take x · norm_weight in bf16; the registers of gemv.py hold float32
        rounds_operands = norm is not None and isinstance(plan, SkinnyPlan)
        assert_close(out, expected.to(dtype), terms=width if rounds_operands else 1)


@both
@pytest.mark.parametrize(("tokens", "rows", "width", "plan"), [*GEMV_CASES, *SKINNY_CASES])
def test_gate_and_up_in_one_product_equal_the_reference(
    dtype: torch.dtype, tokens: int, rows: int, width: int, plan: Any
) -> None:
    x, norm_weight, weight, _, _ = tensors(tokens, 2 * rows, width, dtype)
    out = torch.full((tokens, rows), NAN, dtype=dtype)
    launch = gemv.launch_gate_up if isinstance(plan, GemvPlan) else skinny.launch_skinny_gate_up
    launch(out, x, norm_weight, weight, EPS, False, plan)
    expected = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(out, expected.to(dtype), terms=width)


@pytest.mark.parametrize("add", [False, True])
def test_split_k_adds_its_parts_in_a_fixed_order(add: bool) -> None:
    """5 chunks over 4 splits: the last splits have nothing, and every run gives the same bits."""
    x, _, weight, _, residual = tensors(7, 16, 80, torch.float32)
    plan = SkinnyPlan(chunk=16, split_width=32, splits=4)
    outs = []
    for _ in range(2):
        outs.append(residual.clone() if add else torch.full_like(residual, NAN))
        skinny.launch_skinny(outs[-1], x, None, weight, None, 0.0, add, False, plan)
    expected = product_reference(x, None, weight, None, 0.0)
    assert_close(outs[0], expected + residual if add else expected, terms=4)
    torch.testing.assert_close(outs[0], outs[1], rtol=0, atol=0)


@pytest.mark.parametrize("tokens", [1, 5])
def test_the_ops_choose_a_kernel_by_the_number_of_tokens(tokens: int) -> None:
    x, norm_weight, weight, bias, residual = tensors(tokens, 4, 32, torch.float32)
    out, summed = torch.full_like(residual, NAN), residual.clone()
    linear.linear(out, x, weight, bias)
    assert_close(out, product_reference(x, None, weight, bias, EPS))
    linear.norm_linear(out, x, norm_weight, weight, EPS, bias)
    assert_close(out, product_reference(x, norm_weight, weight, bias, EPS), terms=4)
    linear.linear_add(summed, x, weight)
    assert_close(summed, residual + product_reference(x, None, weight, None, EPS))
    half = torch.full((tokens, 2), NAN)
    linear.norm_gate_up_silu_mul(half, x, norm_weight, weight, EPS)
    assert_close(
        half, silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS)), terms=4
    )


def test_a_token_does_not_see_the_tokens_beside_it() -> None:
    """Bitwise, at one plan: a rung of 4 gives row 0 what it gets in any other batch of 4."""
    x, norm_weight, weight, _, _ = tensors(4, 6, 96, torch.bfloat16)
    plan = GemvPlan(rows=2, warps=4, chunk=32, chunks=3)
    one, other = (torch.full((4, 6), NAN, dtype=torch.bfloat16) for _ in range(2))
    gemv.launch_linear(one, x, norm_weight, weight, None, EPS, False, False, plan)
    x[1:] = NAN
    gemv.launch_linear(other, x, norm_weight, weight, None, EPS, False, False, plan)
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=0)
