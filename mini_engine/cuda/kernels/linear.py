"""The products of a layer, with the small ops before and after them fused in.

    linear:                 out = x Wᵀ (+ bias)
    norm_linear:            out = RMSNorm(x) Wᵀ (+ bias)              norm + QKV
    linear_add:             residual += x Wᵀ                          O, down
    norm_gate_up_silu_mul:  out = silu(gate) · up of RMSNorm(x) Wᵀ    W: the merged weight (2I, K)
    library_linear:         `linear` by a library's product, for any number of tokens

In:  x (M, K), weight (N, K), a tensor or a `QuantizedMatrix`, norm_weight (K,), that of RMSNorm,
     bias (N,).
Out: out (M, N), in the dtype of x.

    weight                            tokens     kernels
    bf16                              1 to 4     gemv_dot.py: tensor cores
    other types, very narrow ones     1 to 4     gemv.py: registers
    quantised                         1 to 16    gemv_quantized.py, four tokens at a time

Each reads a weight once for 4 tokens, which is all that counts in decode. From 5 tokens on it is a
library's turn (cuBLAS on a GPU). A quantised weight must first be written out in the dtype of x for
that: in int4 0.5 bytes a number are read, 2 written and 2 read again. Reading it four times, for 16
tokens, are 2 bytes in all. So 16 is where that begins. They all add in different orders, so a
token's last bits depend on which of them its batch gets: compare eager and graph at one rung, or
with a tolerance.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS, gemv_plan, launch_gate_up, launch_linear
from mini_engine.cuda.kernels.gemv_dot import dot_plan, launch_dot_gate_up, launch_dot_linear
from mini_engine.cuda.kernels.gemv_quantized import (
    launch_dequantize,
    launch_quantized_gate_up,
    launch_quantized_linear,
    quantized_plan,
)
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.quantized_matrix import QuantizedMatrix, dequantized

MAX_QUANTIZED_TOKENS = 4 * MAX_GEMV_TOKENS

Matrix = Tensor | QuantizedMatrix


# ---------------------------------------------------------------- what the model calls


def linear(
    out: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """out = x Wᵀ (+ bias). ValueError also for too many tokens, as in all of these but the last."""
    if isinstance(weight, Tensor):
        plain_linear(out, x, weight, bias, pdl)
    else:
        quantized_linear(out, x, None, *weight.parts, bias, 0.0, False, pdl)


def norm_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Matrix,
    eps: float,
    bias: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """out = RMSNorm(x) Wᵀ (+ bias)."""
    if isinstance(weight, Tensor):
        plain_norm_linear(out, x, norm_weight, weight, eps, bias, pdl)
    else:
        quantized_linear(out, x, norm_weight, *weight.parts, bias, eps, False, pdl)


def linear_add(residual: Tensor, x: Tensor, weight: Matrix, pdl: bool = False) -> None:
    """residual (M, N) += x Wᵀ, rounded once."""
    if isinstance(weight, Tensor):
        plain_linear_add(residual, x, weight, pdl)
    else:
        quantized_linear(residual, x, None, *weight.parts, None, 0.0, True, pdl)


def norm_gate_up_silu_mul(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Matrix, eps: float, pdl: bool = False
) -> None:
    """out (M, I); weight (2I, K): the rows of gate, then the rows of up."""
    if isinstance(weight, Tensor):
        plain_gate_up(out, x, norm_weight, weight, eps, pdl)
    else:
        quantized_gate_up(out, x, norm_weight, *weight.parts, eps, pdl)


def library_linear(
    out: Tensor, x: Tensor, weight: Matrix, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """`linear` by a library. It rounds once, as ours does.

    `pdl` is taken as `linear` takes it, and changes nothing: a library launches its kernels as it
    likes (launch.py says why that is safe between kernels of ours).
    """
    del pdl
    if isinstance(weight, QuantizedMatrix):
        dense = torch.empty(weight.shape, dtype=x.dtype, device=x.device)
        dequantize(dense, *weight.parts)
        weight = dense
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


# ---------------------------------------------------------------- ops: of a plain weight


@torch.library.custom_op("launch_bound::linear", mutates_args=("out",))
def plain_linear(out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, pdl: bool) -> None:
    _product(out, x, None, weight, bias, 0.0, False, pdl)


@torch.library.custom_op("launch_bound::norm_linear", mutates_args=("out",))
def plain_norm_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    bias: Tensor | None,
    pdl: bool,
) -> None:
    _product(out, x, norm_weight, weight, bias, eps, False, pdl)


@torch.library.custom_op("launch_bound::linear_add", mutates_args=("residual",))
def plain_linear_add(residual: Tensor, x: Tensor, weight: Tensor, pdl: bool) -> None:
    _product(residual, x, None, weight, None, 0.0, True, pdl)


@torch.library.custom_op("launch_bound::norm_gate_up_silu_mul", mutates_args=("out",))
def plain_gate_up(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float, pdl: bool
) -> None:
    if weight.dim() != 2 or weight.shape[0] % 2:
        raise ValueError(f"weight is {tuple(weight.shape)}, expected (2 · I, K)")
    num_pairs, width = weight.shape[0] // 2, weight.shape[1]
    check_shape("weight", weight, tuple(weight.shape))
    _check(out, x, norm_weight, num_pairs, width, MAX_GEMV_TOKENS)
    if not runs_triton(x):
        both = product_reference(x.float(), norm_weight, weight, None, eps)
        out.copy_(silu_mul_reference(both))
        return
    plan = gemv_plan(num_pairs, width, pairs=True, sm_count=sm_count(x.device))
    if on_tensor_cores := dot_plan(plan, x, weight, norm_weight):
        launch_dot_gate_up(out, x, norm_weight, weight, eps, pdl, on_tensor_cores)
    else:
        launch_gate_up(out, x, norm_weight, weight, eps, pdl, plan)


def _product(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
) -> None:
    if weight.dim() != 2:
        raise ValueError(f"weight is {tuple(weight.shape)}, expected (N, K)")
    num_rows, width = weight.shape
    check_shape("weight", weight, (num_rows, width))
    _check(out, x, norm_weight, num_rows, width, MAX_GEMV_TOKENS)
    if bias is not None:
        check_shape("bias", bias, (num_rows,))
    if not runs_triton(x):
        product = product_reference(x, norm_weight, weight, bias, eps)
        out.copy_(product + out.float() if add else product)
        return
    plan = gemv_plan(num_rows, width, sm_count=sm_count(x.device))
    given = [x, weight] + ([] if norm_weight is None else [norm_weight])
    if on_tensor_cores := dot_plan(plan, *given):
        launch_dot_linear(out, x, norm_weight, weight, bias, eps, add, pdl, on_tensor_cores)
    else:
        launch_linear(out, x, norm_weight, weight, bias, eps, add, pdl, plan)


# ---------------------------------------------------------------- ops: of a quantised weight


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
    """out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out with `add`)."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, x.shape[1])
    num_rows, width = weight.shape
    check_shape("packed", packed, (num_rows, weight.words_of_row))
    _check(out, x, norm_weight, num_rows, width, MAX_QUANTIZED_TOKENS)
    if bias is not None:
        check_shape("bias", bias, (num_rows,))
    if not runs_triton(x):
        product = product_reference(x, norm_weight, dequantized(weight), bias, eps)
        out.copy_(product + out.float() if add else product)
        return
    sms = sm_count(x.device)
    for some, its_out in _in_fours(x, out):
        plan = quantized_plan(num_rows, width, bits, tokens=len(some), sm_count=sms)
        launch_quantized_linear(its_out, some, norm_weight, weight, bias, eps, add, pdl, plan)


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
    """out = silu(gate) · up of RMSNorm(x) Wᵀ, W (2I, K)."""
    weight = QuantizedMatrix(packed, scales, zeros, bits, x.shape[1])
    num_pairs, width = len(packed) // 2, x.shape[1]
    check_shape("packed", packed, (len(packed), weight.words_of_row))
    _check(out, x, norm_weight, num_pairs, width, MAX_QUANTIZED_TOKENS)
    if not runs_triton(x):
        both = product_reference(x, norm_weight, dequantized(weight), None, eps)
        out.copy_(silu_mul_reference(both))
        return
    sms = sm_count(x.device)
    for some, its_out in _in_fours(x, out):
        plan = quantized_plan(num_pairs, width, bits, tokens=len(some), pairs=True, sm_count=sms)
        launch_quantized_gate_up(its_out, some, norm_weight, weight, eps, pdl, plan)


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


def _in_fours(x: Tensor, out: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(torch.split(x, MAX_GEMV_TOKENS), torch.split(out, MAX_GEMV_TOKENS), strict=True)


# ---------------------------------------------------------------- of both


def product_reference(
    x: Tensor, norm_weight: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """RMSNorm(x) Wᵀ + bias, or x Wᵀ + bias without a norm_weight; in float32, not rounded."""
    row = x.float()
    if norm_weight is not None:
        inverse = torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps)
        row = row * inverse * norm_weight.float()
    product = row @ weight.float().T
    return product if bias is None else product + bias.float()


def _check(
    out: Tensor, x: Tensor, norm_weight: Tensor | None, columns: int, width: int, most: int
) -> None:
    check_shape("x", x, (len(x), width))
    check_shape("out", out, (len(x), columns))
    if norm_weight is not None:
        check_shape("norm_weight", norm_weight, (width,))
    if len(x) > most:
        raise ValueError(f"{len(x)} tokens > {most}: use library_linear")
