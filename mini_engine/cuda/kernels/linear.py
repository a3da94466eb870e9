"""The products of a layer as ops, with the small ops before and after them fused in.

    linear:                 out = x Wᵀ (+ bias)
    norm_linear:            out = RMSNorm(x) Wᵀ (+ bias)              norm + QKV
    linear_add:             residual += x Wᵀ                          O, down
    norm_gate_up_silu_mul:  out = silu(gate) · up of RMSNorm(x) Wᵀ    W: the merged weight (2I, K)

In:  x (M, K), weight (N, K), norm_weight (K,), that of RMSNorm, bias (N,).
Out: out (M, N), in the dtype of x.

`plan` names the alternatives to run (plans.py, gemv_choice.py). 1 to 4 tokens go to gemv.py and
up to 16 to skinny.py: both read each weight once, which is all that counts in decode. Above 16 the
arithmetic begins to count: `library_linear` is `linear` by a library's product (cuBLAS on a GPU),
for any number of tokens. They all add in different orders, so a token's last bits depend on which
of them its batch gets: compare eager and graph at one rung, or with a tolerance.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu_mul_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS, gemv_plan
from mini_engine.cuda.kernels.gemv_choice import launch_gate_up, launch_linear
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.kernels.plans import BASE, plan_of
from mini_engine.cuda.kernels.skinny import (
    MAX_SKINNY_TOKENS,
    launch_skinny,
    launch_skinny_gate_up,
    skinny_plan,
)


@torch.library.custom_op("launch_bound::linear", mutates_args=("out",))
def linear(
    out: Tensor,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    pdl: bool = False,
    plan: str = BASE,
) -> None:
    """out = x Wᵀ (+ bias). ValueError also for more than 16 tokens, as in all of these ops."""
    _product(out, x, None, weight, bias, 0.0, False, pdl, plan)


def library_linear(
    out: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None = None, pdl: bool = False
) -> None:
    """`linear` by a library, for any number of tokens. It rounds once, as ours does.

    `pdl` is taken as `linear` takes it, and changes nothing: a library launches its kernels as it
    likes (launch.py says why that is safe between kernels of ours).
    """
    del pdl
    if bias is None:
        torch.mm(x, weight.t(), out=out)
    else:
        torch.addmm(bias, x, weight.t(), out=out)


@torch.library.custom_op("launch_bound::norm_linear", mutates_args=("out",))
def norm_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    bias: Tensor | None = None,
    pdl: bool = False,
    plan: str = BASE,
    ahead: Tensor | None = None,
) -> None:
    """out = RMSNorm(x) Wᵀ (+ bias). Up to 4 tokens with a plan that prefetches bring `ahead`, the
    weight of a later kernel, to L2 meanwhile."""
    _product(out, x, norm_weight, weight, bias, eps, False, pdl, plan, ahead)


@torch.library.custom_op("launch_bound::linear_add", mutates_args=("residual",))
def linear_add(
    residual: Tensor, x: Tensor, weight: Tensor, pdl: bool = False, plan: str = BASE
) -> None:
    """residual (M, N) += x Wᵀ, rounded once."""
    _product(residual, x, None, weight, None, 0.0, True, pdl, plan)


@torch.library.custom_op("launch_bound::norm_gate_up_silu_mul", mutates_args=("out",))
def norm_gate_up_silu_mul(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    pdl: bool = False,
    plan: str = BASE,
) -> None:
    """out (M, I); weight (2I, K): the rows of gate, then the rows of up."""
    if weight.dim() != 2 or weight.shape[0] % 2:
        raise ValueError(f"weight is {tuple(weight.shape)}, expected (2 · I, K)")
    choice = plan_of(plan)
    _check(out, x, weight.shape[0] // 2, weight)
    check_shape("norm_weight", norm_weight, (weight.shape[1],))
    if not runs_triton(x):
        both = product_reference(x.float(), norm_weight, weight, None, eps)
        out.copy_(silu_mul_reference(both))
        return
    num_pairs, width, sms = weight.shape[0] // 2, weight.shape[1], sm_count(x.device)
    if len(x) <= MAX_GEMV_TOKENS:
        gemv = gemv_plan(num_pairs, width, pairs=True, sm_count=sms)
        launch_gate_up(out, x, norm_weight, weight, eps, pdl, gemv, choice)
    else:
        skinny = skinny_plan(num_pairs, width, sm_count=sms)
        launch_skinny_gate_up(out, x, norm_weight, weight, eps, pdl, skinny)


def bytes_moved(
    num_tokens: int,
    weight_rows: int,
    width: int,
    out_columns: int,
    dtype_bytes: int,
    *,
    norm: bool = False,
    bias: bool = False,
    add: bool = False,
) -> int:
    """The weight once, x in, out out; with `add` out is also read. `out_columns`: `weight_rows`, or
    half of it where gate and up become one."""
    activations = width + out_columns * (2 if add else 1)
    vectors = (width if norm else 0) + (weight_rows if bias else 0)
    return (weight_rows * width + num_tokens * activations + vectors) * dtype_bytes


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


def _product(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
    plan: str,
    ahead: Tensor | None = None,
) -> None:
    choice = plan_of(plan)
    if weight.dim() != 2:
        raise ValueError(f"weight is {tuple(weight.shape)}, expected (N, K)")
    _check(out, x, weight.shape[0], weight)
    if norm_weight is not None:
        check_shape("norm_weight", norm_weight, (weight.shape[1],))
    if bias is not None:
        check_shape("bias", bias, (weight.shape[0],))
    if not runs_triton(x):
        product = product_reference(x, norm_weight, weight, bias, eps)
        out.copy_(product + out.float() if add else product)
        return
    sms = sm_count(x.device)
    if len(x) <= MAX_GEMV_TOKENS:
        gemv = gemv_plan(*weight.shape, sm_count=sms)
        launch_linear(out, x, norm_weight, weight, bias, eps, add, pdl, gemv, choice, ahead)
    else:
        skinny = skinny_plan(
            *weight.shape, split=norm_weight is None and bias is None, sm_count=sms
        )
        launch_skinny(out, x, norm_weight, weight, bias, eps, add, pdl, skinny)


def _check(out: Tensor, x: Tensor, out_columns: int, weight: Tensor) -> None:
    check_shape("weight", weight, tuple(weight.shape))
    check_shape("x", x, (len(x), weight.shape[1]))
    check_shape("out", out, (len(x), out_columns))
    if len(x) > MAX_SKINNY_TOKENS:
        raise ValueError(
            f"{len(x)} tokens > {MAX_SKINNY_TOKENS}, the most of one tile: use "
            "torch.nn.functional.linear, which is better from there on"
        )
