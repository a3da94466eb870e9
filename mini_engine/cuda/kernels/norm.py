"""RMSNorm, alone and with the addition before it (Zhang & Sennrich 2019, arXiv 1910.07467).

    rms_norm:      out = x / sqrt(mean(x²) + eps) · gain
    add_rms_norm:  residual += x;  out = the same of residual

In:  x, residual (T, H), gain (H,). Out: out (T, H), in the dtype of x; computed in float32.

Bytes: `bytes_moved`. The arithmetic is nothing: what a norm costs is its trips to memory and its
launch. `add_rms_norm_naive` is the lesson: three passes, 9 T·H elements and more; fused it is one
pass and 4 T·H. A program takes a whole row and keeps it in registers, so nothing is read twice.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.launch import (
    check_shape,
    launch_options,
    pdl_release,
    pdl_wait,
    runs_triton,
)


@triton.jit
def rms_norm_kernel(out, x, gain, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """One program a row, `tl.program_id(0)`: out = RMSNorm(x) · gain of that row, in float32.

    BLOCK: the power of two at or above WIDTH. Columns from WIDTH on are the next row's: not read,
    not written, no part of the mean. `pdl_release(PDL)` comes first; above `pdl_wait(PDL)` nothing
    is loaded but the gain, which no kernel writes.
    """
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(x + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    tl.store(out + at, (row * inverse * scale).to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    out, residual, x, gain, eps, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr
):
    """One program a row, as above: residual = residual + x, then out = the norm of residual.

    The addition is in float32 and is stored in the residual's dtype. The norm sees the sum as it
    is stored, rounded: that is what the next layer adds to.
    """
    pdl_release(PDL)
    column = tl.arange(0, BLOCK)
    inside = column < WIDTH
    scale = tl.load(gain + column, mask=inside, other=0.0).to(tl.float32)
    pdl_wait(PDL)
    at = tl.program_id(0).to(tl.int64) * WIDTH + column
    row = tl.load(residual + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    row += tl.load(x + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    stored = row.to(residual.dtype.element_ty)
    tl.store(residual + at, stored, mask=inside)
    row = stored.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(row * row, axis=0) / WIDTH + eps)
    tl.store(out + at, (row * inverse * scale).to(out.dtype.element_ty), mask=inside)


# ---------------------------------------------------------------- what the model calls


@torch.library.custom_op("launch_bound::rms_norm", mutates_args=("out",))
def rms_norm(out: Tensor, x: Tensor, gain: Tensor, eps: float, pdl: bool = False) -> None:
    """out = RMSNorm(x) · gain. out, x (T, H), gain (H,). ValueError on misfits and refused PDL."""
    _check(out, x, gain)
    if not runs_triton(x):
        out.copy_(rms_norm_reference(x, gain, eps))
        return
    rms_norm_kernel[(len(x),)](out, x, gain, eps, **_row_of(x), **launch_options(pdl, x))


@torch.library.custom_op("launch_bound::add_rms_norm", mutates_args=("out", "residual"))
def add_rms_norm(
    out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float, pdl: bool = False
) -> None:
    """residual += x, then out = RMSNorm(residual) · gain. All (T, H) but gain (H,)."""
    _check(out, x, gain)
    check_shape("residual", residual, tuple(x.shape))
    if not runs_triton(x):
        add_rms_norm_naive(out, residual, x, gain, eps)
        return
    options = launch_options(pdl, x)
    add_rms_norm_kernel[(len(x),)](out, residual, x, gain, eps, **_row_of(x), **options)


def _row_of(x: Tensor) -> dict[str, int]:
    block = triton.next_power_of_2(x.shape[1])
    return {"WIDTH": x.shape[1], "BLOCK": block, "num_warps": num_warps(block)}


def num_warps(block: int) -> int:
    """Eight elements a thread, so that a bf16 row is loaded 16 bytes at a time; 1 to 8 warps."""
    return max(1, min(8, block // 256))


def bytes_moved(num_tokens: int, hidden_size: int, dtype_bytes: int, *, add: bool) -> int:
    """x in and out out; with `add` also the residual in and out; the gain once."""
    return ((4 if add else 2) * num_tokens * hidden_size + hidden_size) * dtype_bytes


# ---------------------------------------------------------------- the same in PyTorch


def rms_norm_reference(x: Tensor, gain: Tensor, eps: float) -> Tensor:
    """In float32, rounded once at the end."""
    row = x.float()
    inverse = torch.rsqrt(row.square().mean(dim=-1, keepdim=True) + eps)
    return (row * inverse * gain.float()).to(x.dtype)


def add_rms_norm_naive(out: Tensor, residual: Tensor, x: Tensor, gain: Tensor, eps: float) -> None:
    """The three steps as three passes: add, the mean square of each row, scale.

    As PyTorch ops these are more than three kernels; as three hand-written ones they would read
    x, residual, residual, residual and write residual and out: 6 T·H elements instead of 4.
    """
    residual.add_(x)  # pass 1
    mean_square = residual.float().square().mean(dim=-1, keepdim=True)  # pass 2
    out.copy_(residual.float() * torch.rsqrt(mean_square + eps) * gain.float())  # pass 3


# ---------------------------------------------------------------- checks


def _check(out: Tensor, x: Tensor, gain: Tensor) -> None:
    if x.dim() != 2:
        raise ValueError(f"x is {tuple(x.shape)}, expected (num_tokens, hidden_size)")
    check_shape("x", x, tuple(x.shape))
    check_shape("out", out, tuple(x.shape))
    check_shape("gain", gain, (x.shape[1],))
