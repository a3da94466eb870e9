"""The products of linear.py in all their kernels: registers and tensor cores.

Plans are given here: a tiny weight's own plan is one row. Results of the tensor cores go to float32
tensors, so a product in bf16 halves must be as good as one in float32: rounding x · gain to one
bf16 would be 2^-9 off, thousands of times more than what is allowed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from mini_engine.cuda.kernels import gemv, linear
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.gemv_dot import dot_plan, dot_product_kernel
from mini_engine.cuda.kernels.linear import product_reference
from tests.support.kernel_cases import NAN, assert_close

EPS = 1e-6
BF16, FP32 = torch.bfloat16, torch.float32


@dataclass(frozen=True)
class Product:
    """A weight (rows, width) with an even number of rows, x of some tokens, and a plan."""

    kernels: str  # "registers" or "tensor cores"
    dtype: torch.dtype
    tokens: int
    rows: int
    width: int
    plan: GemvPlan

    def tensors(self) -> list[Tensor]:
        """x, norm_weight, weight, bias and a residual, such that products have size 1."""
        torch.manual_seed(self.tokens * self.rows + self.width)
        x, plain = torch.randn(self.tokens, self.width), torch.randn(self.rows, self.width)
        made = (x, torch.rand(self.width) + 0.5, plain / self.width**0.5, torch.randn(self.rows))
        residual = torch.randn(self.tokens, self.rows)
        return [t.to(self.dtype) for t in (*made, residual)]

    def linear(
        self, out: Tensor, x: Tensor, norm: Tensor | None, weight: Tensor, bias: Tensor | None,
        *, add: bool,
    ) -> None:  # fmt: skip
        self.launch(out, x, norm, weight, bias, self.plan, add=add, gated=False)

    def launch(
        self, out: Tensor, x: Tensor, norm: Tensor | None, weight: Tensor, bias: Tensor | None,
        plan: GemvPlan, *, add: bool, gated: bool,
    ) -> None:  # fmt: skip
        form: dict[str, Any] = {"NORM": norm is not None, "BIAS": bias is not None, "ADD": add}
        if self.kernels == "tensor cores":
            form |= {"GATED": gated, "SLICES": plan.warps}
            gemv.launch(dot_product_kernel, plan, out, x, norm, weight, bias, EPS, **form)
        elif gated:
            gemv.launch(gemv.gate_up_kernel, plan, out, x, norm, weight, EPS)
        else:
            gemv.launch(gemv.linear_kernel, plan, out, x, norm, weight, bias, EPS, **form)

    def gate_up(self, out: Tensor, x: Tensor, norm: Tensor, weight: Tensor) -> None:
        """By a plan of half the rows: the tile has rows of both halves."""
        plan = GemvPlan(max(1, self.plan.rows // 2), *list(vars(self.plan).values())[1:])
        self.launch(out, x, norm, weight, None, plan, add=False, gated=True)

    def room(self, *shape: int) -> Tensor:
        dtype = FP32 if self.kernels == "tensor cores" else self.dtype
        return torch.full(shape, NAN, dtype=dtype)


# Rows beyond the weight, columns beyond it, one chunk and many.
PRODUCTS = [
    *(Product("registers", dtype, 1, 12, 64, GemvPlan(8, 4, 64, 1)) for dtype in (FP32, BF16)),
    *(Product("registers", dtype, 3, 6, 100, GemvPlan(4, 4, 16, 7)) for dtype in (FP32, BF16)),
    Product("registers", BF16, 4, 4, 96, GemvPlan(2, 4, 32, 3)),
    Product("tensor cores", BF16, 1, 10, 512, GemvPlan(8, 2, 512, 1)),
    Product("tensor cores", BF16, 2, 14, 500, GemvPlan(4, 1, 256, 2)),
    Product("tensor cores", BF16, 3, 6, 520, GemvPlan(2, 1, 256, 3)),
    Product("tensor cores", BF16, 4, 2, 768, GemvPlan(1, 2, 512, 2)),
]
each_product = pytest.mark.parametrize("product", PRODUCTS, ids=str)


@each_product
def test_every_prologue_and_epilogue_equals_the_reference(product: Product) -> None:
    x, norm_weight, weight, bias, residual = product.tensors()
    for norm, offset, add in ((None, None, False), (norm_weight, bias, False), (None, None, True)):
        out = product.room(product.tokens, product.rows)
        expected = product_reference(x, norm, weight, offset, EPS)
        if add:
            out.copy_(residual)
            expected = expected + residual.float()
        product.linear(out, x, norm, weight, offset, add=add)
        assert_close(out, expected.to(out.dtype), terms=4)


@each_product
def test_gate_and_up_in_one_product_equal_the_reference(product: Product) -> None:
    x, norm_weight, weight, _, _ = product.tensors()
    out = product.room(product.tokens, product.rows // 2)
    product.gate_up(out, x, norm_weight, weight)
    both = product_reference(x, norm_weight, weight, None, EPS)
    assert_close(out, silu_mul_reference(both).to(out.dtype), terms=product.width)


@pytest.mark.parametrize(("dtype", "width"), [(FP32, 32), (BF16, 32), (BF16, 256)])
def test_the_ops_choose_a_kernel_by_type_and_width(dtype: torch.dtype, width: int) -> None:
    made = Product("registers", dtype, 1, 4, width, GemvPlan(1, 1, 1, 1))
    x, norm_weight, weight, bias, residual = made.tensors()
    out, summed, half = made.room(1, 4), residual.clone(), made.room(1, 2)
    linear.linear(out, x, weight, bias)
    assert_close(out, product_reference(x, None, weight, bias, EPS).to(dtype))
    linear.norm_linear(out, x, norm_weight, weight, EPS, bias)
    assert_close(out, product_reference(x, norm_weight, weight, bias, EPS).to(dtype), terms=4)
    linear.linear_add(summed, x, weight)
    wanted = residual.float() + product_reference(x, None, weight, None, EPS)
    assert_close(summed, wanted.to(dtype))
    linear.norm_gate_up_silu_mul(half, x, norm_weight, weight, EPS)
    wanted = silu_mul_reference(product_reference(x, norm_weight, weight, None, EPS))
    assert_close(half, wanted.to(dtype), terms=16)


def test_a_token_does_not_see_the_tokens_beside_it() -> None:
    """Bitwise, at one plan: a rung of 4 gives row 0 what it gets in any other batch of 4."""
    product = Product("registers", BF16, 4, 6, 96, GemvPlan(2, 4, 32, 3))
    x, norm_weight, weight, _, _ = product.tensors()
    one, other = product.room(4, 6), product.room(4, 6)
    product.linear(one, x, norm_weight, weight, None, add=False)
    x[1:] = NAN
    product.linear(other, x, norm_weight, weight, None, add=False)
    torch.testing.assert_close(one[0], other[0], rtol=0, atol=0)


# ---- tensor cores


def test_a_number_of_16_bits_is_multiplied_exactly_in_two_halves() -> None:
    """Weights of 0 and 1 pick x · gain out of the product: all 16 bits of it must come back."""
    product = Product("tensor cores", BF16, 1, 8, 256, GemvPlan(8, 1, 256, 1))
    x = (1 + torch.arange(256) % 128 / 128).to(BF16)[None, :]
    gain = (1 + (37 * torch.arange(256) + 5) % 128 / 128).to(BF16)
    picks = torch.arange(3, 8 * 31 + 3, 31)
    weight = torch.zeros(8, 256, dtype=BF16)
    weight[torch.arange(8), picks] = 1
    out = product.room(1, 8)
    product.linear(out, x, gain, weight, None, add=False)
    exact = (x.double() * gain.double())[0, picks]
    assert (exact.bfloat16().double() != exact).any()  # else one half would do
    rms = x.double().square().mean().sqrt()
    torch.testing.assert_close(out[0].double(), exact / rms, rtol=2e-6, atol=0)


def test_other_types_and_short_chunks_are_left_to_registers() -> None:
    plan = GemvPlan(rows=4, warps=4, chunk=512, chunks=1)
    assert dot_plan(plan, torch.empty(0, dtype=BF16)) == GemvPlan(4, 2, 512, 1)
    assert dot_plan(plan, torch.empty(0, dtype=BF16), torch.empty(0)) is None
    assert dot_plan(GemvPlan(4, 4, 128, 4), torch.empty(0, dtype=BF16)) is None
