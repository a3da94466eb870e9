"""The products of a layer, with the small ops before and after them fused in.

In:  x (M, K), weight (N, K), norm_weight (K,), bias (N,). Out: out (M, N), in the dtype of x.

Up to 4 tokens, tensor cores multiply in bf16 (gemv_dot.py), and registers in other types and in
very narrow weights (gemv.py). From 5 tokens on it is a library's turn. They all add in different
orders: compare eager and graph at one rung.
"""

from __future__ import annotations

import torch
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
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.kernels.norm import rms_norm_reference


@torch.library.custom_op("launch_bound::linear", mutates_args=("out",))
def linear(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """out = x Wᵀ (+ bias). ValueError also for too many tokens, as in all of these but the last."""
    _product(out, x, None, weight, bias, pdl=pdl)


@torch.library.custom_op("launch_bound::norm_linear", mutates_args=("out",))
def norm_linear(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float,
    bias: Tensor | None = None, pdl: bool = False,
) -> None:  # fmt: skip
    """out = RMSNorm(x) Wᵀ (+ bias): norm and QKV."""
    _product(out, x, norm_weight, weight, bias, eps, pdl=pdl)


@torch.library.custom_op("launch_bound::linear_add", mutates_args=("residual",))
def linear_add(residual: Tensor, x: Tensor, weight: Tensor, pdl: bool = False) -> None:
    """residual (M, N) += x Wᵀ, rounded once: O, and down."""
    _product(residual, x, None, weight, add=True, pdl=pdl)


@torch.library.custom_op("launch_bound::norm_gate_up_silu_mul", mutates_args=("out",))
def norm_gate_up_silu_mul(
    out: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor, eps: float, pdl: bool = False
) -> None:
    """out (M, I) = silu(gate) · up of RMSNorm(x) Wᵀ; weight (2I, K): rows of gate, then of up."""
    _product(out, x, norm_weight, weight, None, eps, gated=True, pdl=pdl)


def library_linear(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """`linear` by a library, which rounds once, too. `pdl` changes nothing (launch.py)."""
    del pdl
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


def _product(
    out: Tensor, x: Tensor, norm_weight: Tensor | None, weight: Tensor, bias: Tensor | None = None,
    eps: float = 0.0, *, add: bool = False, gated: bool = False, pdl: bool,
) -> None:  # fmt: skip
    num_rows = len(weight) // (2 if gated else 1)
    if len(x) > MAX_GEMV_TOKENS:
        raise ValueError(f"{len(x)} tokens > {MAX_GEMV_TOKENS}: use library_linear")
    check_shape("out", out, (len(x), num_rows))
    if not runs_triton(x):
        result = product_reference(x, norm_weight, weight, bias, eps)
        result = silu_mul_reference(result) if gated else result
        out.copy_(result + out.float() if add else result)
        return
    form = {"NORM": norm_weight is not None, "BIAS": bias is not None, "ADD": add}
    plan = gemv_plan(num_rows, x.shape[1], pairs=gated, sm_count=sm_count(x.device))
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


def product_reference(
    x: Tensor, norm_weight: Tensor | None, weight: Tensor, bias: Tensor | None, eps: float
) -> Tensor:
    """RMSNorm(x) Wᵀ + bias, or x Wᵀ + bias without a norm_weight; in float32, not rounded."""
    row = x.float()
    if norm_weight is not None:
        row = rms_norm_reference(row, norm_weight, eps)
    found = row @ weight.float().T
    return found if bias is None else found + bias.float()
