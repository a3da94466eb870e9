"""gemv.py and linear.py. Plans are given here: a tiny weight's own plan is one row."""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels import gemv, linear
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.linear import product_reference
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


@both
@pytest.mark.parametrize(("tokens", "rows", "width", "plan"), GEMV_CASES)
def test_every_prologue_and_epilogue_equals_the_reference(
    dtype: torch.dtype, tokens: int, rows: int, width: int, plan: GemvPlan
) -> None:
    x, norm_weight, weight, bias, residual = tensors(tokens, rows, width, dtype)
    for norm, offset, add in ((None, None, False), (norm_weight, bias, False), (None, None, True)):
        out = residual.clone() if add else torch.full_like(residual, NAN)
        expected = product_reference(x, norm, weight, offset, EPS)
        expected = expected + residual.float() if add else expected
        gemv.launch_linear(out, x, norm, weight, offset, EPS, add, False, plan)
        assert_close(out, expected.to(dtype))


@both
@pytest.mark.parametrize(("tokens", "rows", "width", "plan"), GEMV_CASES)
def test_gate_and_up_in_one_product_equal_the_reference(
    dtype: torch.dtype, tokens: int, rows: int, width: int, plan: GemvPlan
) -> None:
    x, norm_weight, weight, _, _ = tensors(tokens, 2 * rows, width, dtype)
    out = torch.full((tokens, rows), NAN, dtype=dtype)
    gemv.launch_gate_up(out, x, norm_weight, weight, EPS, False, plan)
    expected = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(out, expected.to(dtype), terms=width)


@pytest.mark.parametrize(
    ("dtype", "width"), [(torch.float32, 32), (torch.bfloat16, 32), (torch.bfloat16, 256)]
)
def test_the_ops_choose_a_kernel_by_type_and_width(dtype: torch.dtype, width: int) -> None:
    x, norm_weight, weight, bias, residual = tensors(1, 4, width, dtype)
    out, summed = torch.full_like(residual, NAN), residual.clone()
    linear.linear(out, x, weight, bias)
    assert_close(out, product_reference(x, None, weight, bias, EPS).to(dtype))
    linear.norm_linear(out, x, norm_weight, weight, EPS, bias)
    assert_close(out, product_reference(x, norm_weight, weight, bias, EPS).to(dtype), terms=4)
    linear.linear_add(summed, x, weight)
    wanted = residual.float() + product_reference(x, None, weight, None, EPS)
    assert_close(summed, wanted.to(dtype))
    half = torch.full((1, 2), NAN, dtype=dtype)
    linear.norm_gate_up_silu_mul(half, x, norm_weight, weight, EPS)
    wanted = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(half, wanted.to(dtype), terms=16)


def test_a_token_does_not_see_the_tokens_beside_it() -> None:
    """Bitwise, at one plan: a rung of 4 gives row 0 what it gets in any other batch of 4."""
    x, norm_weight, weight, _, _ = tensors(4, 6, 96, torch.bfloat16)
    plan = GemvPlan(rows=2, warps=4, chunk=32, chunks=3)
    one, other = (torch.full((4, 6), NAN, dtype=torch.bfloat16) for _ in range(2))
    gemv.launch_linear(one, x, norm_weight, weight, None, EPS, False, False, plan)
    x[1:] = NAN
    gemv.launch_linear(other, x, norm_weight, weight, None, EPS, False, False, plan)
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=0)
