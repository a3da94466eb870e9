"""RMSNorm, alone and with the addition before it (Zhang & Sennrich 2019, arXiv 1910.07467).

    rms_norm:      out = x / sqrt(mean(x²) + eps) · weight
    add_rms_norm:  residual += x;  out = the same of residual

In:  x, residual (T, H), weight (H,). Out: out (T, H), in the dtype of x; computed in float32.

A norm costs its trips to memory and its launch: an addition and then a norm move 6 T·H elements or
more, one fused pass 4 T·H, because a program keeps a whole row in registers.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton


@triton.jit
def rms_norm_kernel(
    out, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program i: out = RMSNorm(x) · weight of row i, in float32.

    BLOCK is the power of two at or above WIDTH. Columns from WIDTH on belong to the next row: they
    are not read, not written, and no part of the mean; the weight ends there, too. Every number of
    x is read once, and past L1 (".cg"), since the kernel before wrote it. Offsets in int64: a
    tensor may have more than 2³¹ numbers. `pdl_release(PDL)` comes first; above `pdl_wait(PDL)`
    only the weight is loaded, which no kernel writes.
    """
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    tl.store(out + at, (row * inverse * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, weight, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """Program i, as above: residual = residual + x, then out = the norm of residual.

    Every number of x and of the residual is read once, and past L1. The sum is computed in float32
    and stored in the residual's dtype. The norm sees the sum as it is stored, rounded, because that
    is what the next layer adds to.
    """
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(residual + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    row += tl.load(x + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    # Rounded before it is normed: the next layer adds to what is stored, not to the float32.
    stored = row.to(residual.dtype.element_ty)
    tl.store(residual + at, stored, mask=inside)
    row = stored.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    tl.store(out + at, (row * inverse * scale).to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("launch_bound::rms_norm", mutates_args=("out",))
def rms_norm(out: Tensor, x: Tensor, weight: Tensor, eps: float, pdl: bool = False) -> None:
    """out (T, H) = RMSNorm(x) · weight."""
    check_shape("out", out, tuple(x.shape))
    if not runs_triton(x):
        out.copy_(rms_norm_reference(x, weight, eps))
        return
    options = row_options(x.shape[1]) | launch_options(pdl, x.device)
    rms_norm_kernel[(len(x),)](out, x, weight, eps, **options)


@torch.library.custom_op("launch_bound::add_rms_norm", mutates_args=("out", "residual"))
def add_rms_norm(
    out: Tensor, residual: Tensor, x: Tensor, weight: Tensor, eps: float, pdl: bool = False
) -> None:
    """residual += x, then out = RMSNorm(residual) · weight."""
    check_shape("out", out, tuple(x.shape))
    check_shape("residual", residual, tuple(x.shape))
    if not runs_triton(x):
        residual.add_(x)
        out.copy_(rms_norm_reference(residual, weight, eps))
        return
    options = row_options(x.shape[1]) | launch_options(pdl, x.device)
    add_rms_norm_kernel[(len(x),)](out, residual, x, weight, eps, **options)


def row_options(width: int) -> dict[str, int]:
    """A row in one tile, eight elements a thread: a bf16 row is loaded 16 bytes at a time."""
    block = triton.next_power_of_2(width)
    return {"WIDTH": width, "BLOCK": block, "num_warps": max(1, min(8, block // 256))}


def rms_norm_reference(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """In float32, rounded once at the end."""
    row = x.float()
    inverse = torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps)
    return (row * inverse * weight.float()).to(x.dtype)
