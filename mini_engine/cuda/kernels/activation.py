"""SiLU times up: the gate of a SwiGLU feed-forward (Shazeer 2020, arXiv 2002.05202).

    out = gate · σ(gate) · up

In:  gate_up (T, 2I), gate in the left half of a row and up in the right half, as one merged product
     leaves them.
Out: out (T, I), computed in float32. Bytes: two halves in, one out.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton

BLOCK = 1024  # columns a program: with four warps, each thread loads 16 bytes of each half


@triton.jit
def silu(x):
    """x · σ(x), in the dtype of x (float32)."""
    return x / (1.0 + tl.exp(-x))


@triton.jit
def silu_mul_kernel(out, gate_up, WIDTH: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program (row, i) computes columns i · BLOCK to (i + 1) · BLOCK of one row of out, in float32.

    A row of out has WIDTH = I columns, a row of gate_up 2 · WIDTH; columns from WIDTH on do not
    exist: they are neither read nor written. Every number is read once, and past L1 (".cg"), since
    the kernel before wrote it. Offsets in int64: a tensor may have more than 2³¹ numbers.
    `pdl_release(PDL)` comes first, and no load stands above `pdl_wait(PDL)`.
    """
    pdl_release(PDL)
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = column < WIDTH
    pdl_wait(PDL)
    # Both halves of a row leave together: gate here, up WIDTH columns further on.
    at = gate_up + row * 2 * WIDTH + column
    gate = tl.load(at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    up = tl.load(at + WIDTH, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    product = silu(gate) * up
    tl.store(out + row * WIDTH + column, product.to(out.dtype.element_ty), mask=inside)


@torch.library.custom_op("launch_bound::silu_mul", mutates_args=("out",))
def silu_mul(out: Tensor, gate_up: Tensor, pdl: bool = False) -> None:
    """out (T, I) = silu(gate) · up of gate_up (T, 2I)."""
    rows, width = len(gate_up), gate_up.shape[1] // 2
    check_shape("out", out, (rows, width))
    if not runs_triton(out):
        out.copy_(silu_mul_reference(gate_up))
        return
    block = min(BLOCK, triton.next_power_of_2(width))
    silu_mul_kernel[(rows, triton.cdiv(width, block))](
        out, gate_up, WIDTH=width, BLOCK=block, num_warps=4, **launch_options(pdl, out.device)
    )


def silu_mul_reference(gate_up: Tensor) -> Tensor:
    """In float32, rounded once at the end."""
    gate, up = gate_up.float().chunk(2, dim=-1)
    return (torch.nn.functional.silu(gate) * up).to(gate_up.dtype)
