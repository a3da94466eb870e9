"""The products of a layer, with the small ops before and after them fused in.

    linear:                 out = x Wᵀ (+ bias)
    norm_linear:            out = RMSNorm(x) Wᵀ (+ bias)              norm + QKV
    linear_add:             residual += x Wᵀ                          O, down
    norm_gate_up_silu_mul:  out = silu(gate) · up of RMSNorm(x) Wᵀ    W: the merged weight (2I, K)
    library_linear:         `linear` by a library's product, for any number of tokens

In:  x (M, K), weight (N, K), a tensor or a `QuantizedMatrix`, norm_weight (K,), bias (N,).
Out: out (M, N), in the dtype of x.

    weight                            tokens     kernels
    bf16                              1 to 4     gemv_dot.py: tensor cores
    other types, very narrow ones     1 to 4     gemv.py: registers
    quantised                         1 to 16    gemv_quantized.py, four tokens at a time

From 5 tokens on it is a library's turn. For that a quantised weight must first be written out: in
int4 0.5 bytes a number are read, 2 written and 2 read again, where four reads, for 16 tokens, are 2
bytes in all. They all add in different orders: compare eager and graph at one rung.
"""

from __future__ import annotations

import torch
import triton
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import (
    MAX_GEMV_TOKENS,
    gate_up_kernel,
    gemv_plan,
    launch,
    linear_kernel,
)
from mini_engine.cuda.kernels.gemv_dot import dot_plan, dot_product_kernel
from mini_engine.cuda.kernels.gemv_quantized import (
    EXPONENT,
    dequantize_kernel,
    form_of,
    quantized_plan,
    quantized_product_kernel,
)
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.quantized_matrix import WORDS, Matrix, QuantizedMatrix, dequantized

MAX_QUANTIZED_TOKENS = 4 * MAX_GEMV_TOKENS


def linear(
    out: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """out = x Wᵀ (+ bias). ValueError also for too many tokens, as in all of these but the last."""
    plain_op(out, x, None, *parts_of(weight), bias, 0.0, False, False, pdl)


def norm_linear(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Matrix, eps: float,
    bias: Tensor | None = None, pdl: bool = False,
) -> None:  # fmt: skip
    """out = RMSNorm(x) Wᵀ (+ bias)."""
    norm_op(out, x, norm_weight, *parts_of(weight), bias, eps, False, False, pdl)


def linear_add(residual: Tensor, x: Tensor, weight: Matrix, pdl: bool = False) -> None:
    """residual (M, N) += x Wᵀ, rounded once."""
    add_op(residual, x, None, *parts_of(weight), None, 0.0, True, False, pdl)


def norm_gate_up_silu_mul(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Matrix, eps: float, pdl: bool = False
) -> None:
    """out (M, I); weight (2I, K): the rows of gate, then the rows of up."""
    gated_op(out, x, norm_weight, *parts_of(weight), None, eps, False, True, pdl)


def library_linear(
    out: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """`linear` by a library, which rounds once, too. `pdl` changes nothing (launch.py)."""
    del pdl
    if isinstance(weight, QuantizedMatrix):
        dense = torch.empty(weight.shape, dtype=x.dtype, device=x.device)
        dequantize(dense, *weight.parts)
        weight = dense
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def product(
    out: Tensor, x: Tensor, norm_weight: Tensor | None,
    weight: Tensor, scales: Tensor | None, zeros: Tensor | None, bits: int,
    bias: Tensor | None, eps: float, add: bool, gated: bool, pdl: bool,
) -> None:  # fmt: skip
    """out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out with `add`). W: as `parts_of` gives it.
    gated: out = silu(gate) · up of RMSNorm(x) Wᵀ."""
    num_rows, width = len(weight) // (2 if gated else 1), x.shape[1]
    matrix = weight if scales is None else QuantizedMatrix(weight, scales, zeros, bits, width)
    most = MAX_GEMV_TOKENS if scales is None else MAX_QUANTIZED_TOKENS
    if len(x) > most:
        raise ValueError(f"{len(x)} tokens > {most}: use library_linear")
    check_shape("out", out, (len(x), num_rows))
    if not runs_triton(x):
        result = product_reference(x, norm_weight, matrix, bias, eps)
        result = silu_mul_reference(result) if gated else result
        out.copy_(result + out.float() if add else result)
        return
    sms = sm_count(x.device)
    form = {"NORM": norm_weight is not None, "BIAS": bias is not None, "ADD": add}
    if isinstance(matrix, QuantizedMatrix):
        fours = torch.split(out, MAX_GEMV_TOKENS), torch.split(x, MAX_GEMV_TOKENS)
        for of_four, four in zip(*fours, strict=True):
            plan = quantized_plan(
                num_rows, width, bits, tokens=len(four), pairs=gated, sm_count=sms
            )
            launch(
                quantized_product_kernel, plan, of_four, four, norm_weight, weight, scales, zeros,
                bias, eps, EXPONENT, pdl=pdl, GATED=gated, **form, **form_of(matrix),
            )  # fmt: skip
        return
    plan = gemv_plan(num_rows, width, pairs=gated, sm_count=sms)
    norms = [] if norm_weight is None else [norm_weight]
    if dot := dot_plan(plan, x, weight, *norms):
        launch(
            dot_product_kernel, dot, out, x, norm_weight, weight, bias, eps, pdl=pdl,
            GATED=gated, SLICES=dot.warps, **form,
        )  # fmt: skip
    elif gated:
        launch(gate_up_kernel, plan, out, x, norm_weight, weight, eps, pdl=pdl)
    else:
        launch(linear_kernel, plan, out, x, norm_weight, weight, bias, eps, pdl=pdl, **form)


# four names for one op, so that a trace tells the products of a layer apart
plain_op, norm_op, add_op, gated_op = (
    torch.library.custom_op(f"launch_bound::{name}", product, mutates_args=("out",))
    for name in ("linear", "norm_linear", "linear_add", "norm_gate_up_silu_mul")
)


@torch.library.custom_op("launch_bound::dequantize", mutates_args=("out",))
def dequantize(
    out: Tensor, packed: Tensor, scales: Tensor, zeros: Tensor | None, bits: int
) -> None:
    """The weight into out (N, K), rounded to its dtype."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, out.shape[1])
    if not runs_triton(out):
        out.copy_(dequantized(weight))
        return
    rows, chunk = 4, 8  # chunk: the segments that a warp loads of a row, 16 bytes a thread
    grid = triton.cdiv(len(out), rows), triton.cdiv(packed.shape[1], WORDS * chunk)
    dequantize_kernel[grid](
        out, packed, scales, zeros, EXPONENT, N=len(out), K=out.shape[1], ROWS=rows, CHUNK=chunk,
        **form_of(weight), num_warps=4,
    )  # fmt: skip


def product_reference(
    x: Tensor, norm_weight: Tensor | None, weight: Matrix, bias: Tensor | None, eps: float
) -> Tensor:
    """RMSNorm(x) Wᵀ + bias, or x Wᵀ + bias without a norm_weight; in float32, not rounded."""
    row = x.float()
    if norm_weight is not None:
        inverse = torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps)
        row = row * inverse * norm_weight.float()
    dense = dequantized(weight) if isinstance(weight, QuantizedMatrix) else weight.float()
    return row @ dense.T if bias is None else row @ dense.T + bias.float()


def parts_of(weight: Matrix) -> tuple[Tensor, Tensor | None, Tensor | None, int]:
    """A weight as an op takes it, whose schema knows no dataclass: its numbers, None, None, 0; or
    the words, scales, zeros and bits of a quantised one."""
    return (weight, None, None, 0) if isinstance(weight, Tensor) else weight.parts
