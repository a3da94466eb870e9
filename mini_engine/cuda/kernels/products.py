"""The products of a layer, for a plain weight or a quantised one.

    linear, norm_linear, linear_add, norm_gate_up_silu_mul      up to 16 tokens
    library_linear                                              any number of them

In, out: as in linear.py, which does the plain ones. A `QuantizedMatrix` goes to gemv_quantized.py,
four tokens at a time: 5 to 16 tokens read it two to four times, which in int4 are fewer bytes than
bf16's one time. For a library it is first written out in the dtype of x: one kernel more, which
reads it and writes all of its numbers, and the library reads those. In int4 that is nine times the
quantised bytes, so this is for batches where arithmetic counts more. There are no alternatives to
these kernels: of `plan` only the base is taken.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_engine.cuda.kernels import linear as plain
from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS
from mini_engine.cuda.kernels.gemv_quantized import (
    launch_dequantize,
    launch_quantized_gate_up,
    launch_quantized_linear,
    quantized_plan,
)
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.kernels.plans import BASE
from mini_engine.cuda.kernels.quantized import QuantizedMatrix, dequantized
from mini_engine.cuda.kernels.skinny import MAX_SKINNY_TOKENS

Matrix = Tensor | QuantizedMatrix


def linear(
    out: Tensor,
    x: Tensor,
    weight: Matrix,
    bias: Tensor | None = None,
    pdl: bool = False,
    plan: str = BASE,
) -> None:
    if isinstance(weight, Tensor):
        plain.linear(out, x, weight, bias, pdl, plan)
    else:
        _quantized(out, x, None, weight, bias, 0.0, False, pdl, plan)


def norm_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Matrix,
    eps: float,
    bias: Tensor | None = None,
    pdl: bool = False,
    plan: str = BASE,
    ahead: Matrix | None = None,
) -> None:
    if isinstance(weight, Tensor):
        following = ahead if isinstance(ahead, Tensor) else None
        plain.norm_linear(out, x, norm_weight, weight, eps, bias, pdl, plan, following)
    else:
        _quantized(out, x, norm_weight, weight, bias, eps, False, pdl, plan)


def linear_add(
    residual: Tensor, x: Tensor, weight: Matrix, pdl: bool = False, plan: str = BASE
) -> None:
    if isinstance(weight, Tensor):
        plain.linear_add(residual, x, weight, pdl, plan)
    else:
        _quantized(residual, x, None, weight, None, 0.0, True, pdl, plan)


def norm_gate_up_silu_mul(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Matrix,
    eps: float,
    pdl: bool = False,
    plan: str = BASE,
) -> None:
    if isinstance(weight, Tensor):
        plain.norm_gate_up_silu_mul(out, x, norm_weight, weight, eps, pdl, plan)
        return
    check_plan(plan)
    packed, scales, zeros, bits = weight.packed, weight.scales, weight.zeros, weight.bits
    quantized_gate_up(out, x, norm_weight, packed, scales, zeros, bits, eps, pdl)


def library_linear(
    out: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None = None, pdl: bool = False
) -> None:
    plain.library_linear(out, x, dense(weight, x.dtype), bias, pdl)


def dense(weight: Matrix, dtype: torch.dtype) -> Tensor:
    """The weight (N, K) for a library's product: itself, or written out in this dtype."""
    if isinstance(weight, Tensor):
        return weight
    out = torch.empty(weight.shape, dtype=dtype, device=weight.packed.device)
    dequantize(out, weight.packed, weight.scales, weight.zeros, weight.bits)
    return out


def check_plan(plan: str) -> None:
    """ValueError for any plan but the base: what the others try is about plain weights."""
    if plan != BASE:
        raise ValueError(
            f"plan {plan!r} with quantised weights: they have one kernel, use the plan {BASE!r}"
        )


# ---------------------------------------------------------------- ops: a schema knows no dataclass


@torch.library.custom_op("launch_bound::quantized_linear", mutates_args=("out",))
def quantized_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bits: int,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
) -> None:
    """out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out with `add`), for up to 16 tokens."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, x.shape[1])
    rows = len(packed)
    _check(out, x, norm_weight, rows, weight)
    if bias is not None:
        check_shape("bias", bias, (rows,))
    if not runs_triton(x):
        product = product_reference(x, norm_weight, dequantized(weight), bias, eps)
        out.copy_(product + out.float() if add else product)
        return
    sms = sm_count(x.device)
    for some, its_out in _fours(x, out):
        gemv = quantized_plan(*weight.shape, bits, tokens=len(some), sm_count=sms)
        launch_quantized_linear(its_out, some, norm_weight, weight, bias, eps, add, pdl, gemv)


@torch.library.custom_op("launch_bound::quantized_gate_up", mutates_args=("out",))
def quantized_gate_up(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    bits: int,
    eps: float,
    pdl: bool,
) -> None:
    """out = silu(gate) · up of RMSNorm(x) Wᵀ, W (2I, K); for up to 16 tokens."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, x.shape[1])
    pairs = len(packed) // 2
    _check(out, x, norm_weight, pairs, weight)
    if not runs_triton(x):
        both = product_reference(x, norm_weight, dequantized(weight), None, eps)
        out.copy_(silu_mul_reference(both))
        return
    sms, width = sm_count(x.device), x.shape[1]
    for some, its_out in _fours(x, out):
        gemv = quantized_plan(pairs, width, bits, tokens=len(some), pairs=True, sm_count=sms)
        launch_quantized_gate_up(its_out, some, norm_weight, weight, eps, pdl, gemv)


@torch.library.custom_op("launch_bound::dequantize", mutates_args=("out",))
def dequantize(
    out: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bits: int
) -> None:
    """The weight into out (N, K), rounded to its dtype."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, out.shape[1])
    if runs_triton(out):
        launch_dequantize(out, weight)
    else:
        out.copy_(dequantized(weight))


def _quantized(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    weight: QuantizedMatrix,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
    plan: str,
) -> None:
    check_plan(plan)
    packed, scales, zeros, bits = weight.packed, weight.scales, weight.zeros, weight.bits
    quantized_linear(out, x, norm_weight, packed, scales, zeros, bits, bias, eps, add, pdl)


def _fours(x: Tensor, out: Tensor) -> zip[tuple[Tensor, Tensor]]:
    return zip(torch.split(x, MAX_GEMV_TOKENS), torch.split(out, MAX_GEMV_TOKENS), strict=True)


def _check(
    out: Tensor, x: Tensor, norm_weight: Tensor | None, columns: int, weight: QuantizedMatrix
) -> None:
    check_shape("x", x, (len(x), weight.width))
    check_shape("out", out, (len(x), columns))
    check_shape("packed", weight.packed, (len(weight.packed), weight.words_of_row))
    if norm_weight is not None:
        check_shape("norm_weight", norm_weight, (weight.width,))
    if len(x) > MAX_SKINNY_TOKENS:
        raise ValueError(f"{len(x)} tokens > {MAX_SKINNY_TOKENS}: use library_linear")
