"""gemv_quantized.py against its reference. Plans are given here, as in test_linear.py."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from mini_engine.cuda.kernels import gemv_quantized as kernels
from mini_engine.cuda.kernels import linear
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.quantized_matrix import QuantizedMatrix, dequantized, quantize
from tests.support.kernel_cases import NAN, assert_close

EPS = 1e-6
FORMS = {"int8": (8, False), "int4": (4, False), "int4-symmetric": (4, True)}
each_form = pytest.mark.parametrize("form", FORMS)
# tokens, rows, width, plans of int8 and of int4: rows beyond the weight, a last group of 4 and of
# 44 columns, segments beyond the last, one chunk and many
CASES = [
    (1, 6, 256, GemvPlan(4, 4, 4, 1), GemvPlan(4, 4, 2, 1)),
    (2, 4, 132, GemvPlan(4, 4, 2, 2), GemvPlan(4, 4, 1, 2)),
    (3, 5, 300, GemvPlan(8, 4, 8, 1), GemvPlan(8, 4, 4, 1)),
    (4, 2, 64, GemvPlan(2, 4, 1, 1), GemvPlan(2, 4, 1, 1)),
]


def matrix(form: str, rows: int, width: int) -> QuantizedMatrix:
    torch.manual_seed(rows + width)
    bits, symmetric = FORMS[form]
    return quantize(torch.randn(rows, width) / width**0.5, bits, symmetric=symmetric)


def tensors(tokens: int, rows: int, width: int, dtype: torch.dtype) -> list[Tensor]:
    """x, norm_weight, bias and a residual."""
    made = torch.randn(tokens, width), torch.rand(width) + 0.5, torch.randn(rows)
    return [t.to(dtype) for t in (*made, torch.randn(tokens, rows))]


@each_form
@pytest.mark.parametrize(("tokens", "rows", "width", "plan_8", "plan_4"), CASES)
def test_every_prologue_and_epilogue_equals_the_reference(
    form: str, tokens: int, rows: int, width: int, plan_8: GemvPlan, plan_4: GemvPlan
) -> None:
    dtype = torch.bfloat16 if tokens == 2 else torch.float32
    weight = matrix(form, rows, width)
    x, norm_weight, bias, residual = tensors(tokens, rows, width, dtype)
    plan = plan_8 if weight.bits == 8 else plan_4
    for norm, offset, add in ((None, None, False), (norm_weight, bias, False), (None, None, True)):
        out = residual.clone() if add else torch.full_like(residual, NAN)
        expected = product_reference(x, norm, dequantized(weight), offset, EPS)
        expected = expected + residual.float() if add else expected
        kernels.launch_quantized_linear(out, x, norm, weight, offset, EPS, add, False, plan)
        assert_close(out, expected.to(dtype))


@each_form
def test_gate_and_up_meet_in_registers(form: str) -> None:
    pairs, width, dtype = 3, 300, torch.bfloat16
    weight = matrix(form, 2 * pairs, width)
    x, norm_weight, *_ = tensors(2, pairs, width, dtype)
    out = torch.full((2, pairs), NAN, dtype=dtype)
    plan = GemvPlan(rows=2, warps=4, chunk=2, chunks=3 if weight.bits == 8 else 2)
    kernels.launch_quantized_gate_up(out, x, norm_weight, weight, EPS, False, plan)
    both = product_reference(x, norm_weight, dequantized(weight), None, EPS)
    assert_close(out, silu_mul_reference(both).to(dtype))


@each_form
def test_a_weight_is_written_out_exactly_up_to_one_rounding(form: str) -> None:
    weight = matrix(form, 5, 300)
    for dtype in (torch.float32, torch.bfloat16):
        out = torch.empty(weight.shape, dtype=dtype)
        linear.dequantize(out, *weight.parts)
        assert torch.equal(out, dequantized(weight).to(dtype))


def test_the_ops_take_more_tokens_four_at_a_time() -> None:
    weight, x = matrix("int4", 2, 160), torch.randn(5, 160)
    out, half = torch.ones(5, 2), torch.empty(5, 1)
    linear.linear_add(out, x, weight)
    assert_close(out, 1 + x @ dequantized(weight).T, terms=8)
    linear.norm_gate_up_silu_mul(half, x, torch.ones(160), weight, EPS)
    both = product_reference(x, torch.ones(160), dequantized(weight), None, EPS)
    assert_close(half, silu_mul_reference(both), terms=8)


def test_a_row_beyond_the_last_and_a_column_beyond_the_width_are_never_read() -> None:
    """Around every tensor stands what would spoil a sum: NaN, or a scale of NaN."""
    rows, width = 3, 132
    weight = matrix("int4", rows, width)
    assert weight.zeros is not None

    def inside(tensor: Tensor, around: float) -> Tensor:
        border = torch.full((64, *tensor.shape[1:]), around).to(tensor.dtype)
        return torch.cat([border, tensor, border])[64 : 64 + len(tensor)]

    guarded = QuantizedMatrix(
        inside(weight.packed, -1), inside(weight.scales, NAN), inside(weight.zeros, 255), 4, width
    )
    x = torch.cat([torch.randn(1, width), torch.full((1, width), NAN)])[:1]
    out = torch.full((2, rows), NAN)
    plan = GemvPlan(rows=2, warps=4, chunk=4, chunks=1)
    kernels.launch_quantized_linear(out[:1], x, None, guarded, None, EPS, False, False, plan)
    assert_close(out[:1], x @ dequantized(weight).T, terms=8)
    assert out[1].isnan().all()
