"""gemv_dot.py against the references, in bf16 and beyond the edges of its tiles.

Results go to float32 tensors here, so a product in bf16 halves must be as good as one in float32:
rounding x · gain to one bf16 would be 2^-9 off, thousands of times more than what is allowed.
"""

from __future__ import annotations

import pytest
import torch

from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan, launch_gate_up, launch_linear
from mini_engine.cuda.kernels.gemv_dot import dot_gate_up_kernel, dot_linear_kernel, dot_plan
from mini_engine.cuda.kernels.linear import product_reference
from tests.cuda.kernels.interpreted.test_linear import EPS, tensors
from tests.support.kernel_cases import NAN, assert_close

BF16 = torch.bfloat16

# tokens, rows of the weight, width, plan: rows beyond the weight, columns beyond it, many chunks
CASES = [
    (1, 10, 512, GemvPlan(rows=8, warps=2, chunk=512, chunks=1)),
    (2, 7, 500, GemvPlan(rows=4, warps=1, chunk=256, chunks=2)),
    (3, 3, 520, GemvPlan(rows=2, warps=1, chunk=256, chunks=3)),
    (4, 2, 768, GemvPlan(rows=1, warps=2, chunk=512, chunks=2)),
]


@pytest.mark.parametrize(("tokens", "rows", "width", "plan"), CASES)
def test_every_prologue_and_epilogue_equals_the_reference(
    tokens: int, rows: int, width: int, plan: GemvPlan
) -> None:
    x, norm_weight, weight, bias, residual = tensors(tokens, rows, width, BF16)
    for norm, offset, add in ((norm_weight, bias, False), (None, None, True)):
        out = residual.float() if add else torch.full((tokens, rows), NAN)
        expected = product_reference(x, norm, weight, offset, EPS)
        expected = expected + residual.float() if add else expected
        given = out, x, norm, weight, offset, EPS, add, False, plan
        launch_linear(*given, dot_linear_kernel, SLICES=plan.warps)
        assert_close(out, expected, terms=4)


def test_gate_and_up_in_one_product_equal_the_reference() -> None:
    x, norm_weight, weight, _, _ = tensors(2, 14, 500, BF16)
    out = torch.full((2, 7), NAN)
    plan = GemvPlan(rows=2, warps=1, chunk=256, chunks=2)
    given = out, x, norm_weight, weight, EPS, False, plan
    launch_gate_up(*given, dot_gate_up_kernel, SLICES=plan.warps)
    expected = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(out, expected, terms=16)


def test_a_number_of_16_bits_is_multiplied_exactly_in_two_halves() -> None:
    """Weights of 0 and 1 pick x · gain out of the product: all 16 bits of it must come back."""
    width = 256
    x = (1 + torch.arange(width) % 128 / 128).to(BF16)[None, :]
    gain = (1 + (37 * torch.arange(width) + 5) % 128 / 128).to(BF16)
    picks = torch.arange(3, 8 * 31 + 3, 31)
    weight = torch.zeros(8, width, dtype=BF16)
    weight[torch.arange(8), picks] = 1
    out = torch.full((1, 8), NAN)
    plan = GemvPlan(rows=8, warps=1, chunk=256, chunks=1)
    given = out, x, gain, weight, None, 0.0, False, False, plan
    launch_linear(*given, dot_linear_kernel, SLICES=plan.warps)
    exact = (x.double() * gain.double())[0, picks]
    assert (exact.bfloat16().double() != exact).any()  # else one half would do
    rms = x.double().square().mean().sqrt()
    torch.testing.assert_close(out[0].double(), exact / rms, rtol=4e-7, atol=0)


def test_other_types_and_short_chunks_are_left_to_registers() -> None:
    plan = GemvPlan(rows=4, warps=4, chunk=512, chunks=1)
    assert dot_plan(plan, torch.empty(0, dtype=BF16)) == GemvPlan(4, 2, 512, 1)
    assert dot_plan(plan, torch.empty(0, dtype=BF16), torch.empty(0)) is None
    assert dot_plan(GemvPlan(4, 4, 128, 4), torch.empty(0, dtype=BF16)) is None
