"""Your first kernel: RMSNorm in Triton, and GELU beside it (chapter 11).

    python -m course.first_kernel             # run both in Triton's interpreter, on any CPU
    python -m course.first_kernel compile     # compile RMSNorm for an H200; no GPU is needed
    python -m course.first_kernel break       # the same kernel with two faults, in the interpreter

In:  x (rows, N) in bfloat16, weight (N,). Out: the same shape, computed in float32, rounded once.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from itertools import groupby

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import gelu
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from labs.support.interpreter import install_bf16_guard
from mini_engine.cuda.kernels.launch import INTERPRETED


@triton.jit
def rms_norm_row(out, x, weight, eps, N: tl.constexpr, TILE: tl.constexpr):
    """One program normalises one row."""
    row = tl.program_id(0)
    cols = tl.arange(0, TILE)
    mine = cols < N
    here = tl.load(x + row * N + cols, mask=mine, other=0.0).to(tl.float32)
    gain = tl.load(weight + cols, mask=mine, other=0.0).to(tl.float32)
    mean_square = tl.sum(here * here) / N
    normed = here * tl.rsqrt(mean_square + eps) * gain
    tl.store(out + row * N + cols, normed.to(tl.bfloat16), mask=mine)


@triton.jit
def rms_norm_broken(
    out, x, weight, eps, N: tl.constexpr, TILE: tl.constexpr,
    DIVISOR: tl.constexpr, STORED: tl.constexpr, LAST_FIRST: tl.constexpr,
):  # fmt: skip
    """The same, divided by DIVISOR, of a row STORED columns written, from the last row on."""
    row = tl.program_id(0)
    if LAST_FIRST:
        row = tl.num_programs(0) - 1 - row
    cols = tl.arange(0, TILE)
    here = tl.load(x + row * N + cols, mask=cols < N, other=0.0).to(tl.float32)
    gain = tl.load(weight + cols, mask=cols < N, other=0.0).to(tl.float32)
    normed = here * tl.rsqrt(tl.sum(here * here) / DIVISOR + eps) * gain
    tl.store(out + row * N + cols, normed.to(tl.bfloat16), mask=cols < STORED)


@triton.jit
def gelu_tile(out, x, N, TILE: tl.constexpr):
    """One program has one tile of N numbers. The GELU of GPT-2: x/2 · (1 + tanh(u))."""
    cols = tl.program_id(0) * TILE + tl.arange(0, TILE)
    mine = cols < N
    here = tl.load(x + cols, mask=mine, other=0.0).to(tl.float32)
    u = 0.7978845608 * (here + 0.044715 * here * here * here)
    shaped = here / (1.0 + tl.exp(-2.0 * u))  # 1 + tanh(u) = 2 / (1 + exp(-2u))
    tl.store(out + cols, shaped.to(tl.bfloat16), mask=mine)


def rms_norm_in_pytorch(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """As `transformers` has it."""
    here = x.to(torch.float32)
    mean_square = here.pow(2).mean(-1, keepdim=True)
    here = here * torch.rsqrt(mean_square + eps)
    return weight * here.to(x.dtype)


def run() -> None:
    """Both kernels beside PyTorch."""
    install_bf16_guard()
    torch.manual_seed(0)
    x = torch.randn(3, 896).to(torch.bfloat16)
    weight = torch.randn(896).to(torch.bfloat16)
    out = torch.empty_like(x)
    rms_norm_row[(3,)](out, x, weight, 1e-6, N=896, TILE=1024)
    wanted = rms_norm_in_pytorch(x.double(), weight.double())
    for name, found in (("one kernel", out), ("eight ops ", rms_norm_in_pytorch(x, weight))):
        print(f"RMSNorm, {name}: off by {(found - wanted).abs().max():.4f} at most")
    tiles = triton.cdiv(x.numel(), 1024)
    gelu_tile[(tiles,)](out, x, x.numel(), TILE=1024)
    off = (out - gelu(x.double(), approximate="tanh")).abs().max()
    print(f"GELU, {tiles} programs of 1,024 numbers: off by {off:.4f} at most")


def run_broken() -> None:
    """What two faults do to three rows. One row more is there for what is written too far."""
    install_bf16_guard()
    torch.manual_seed(0)
    x = torch.randn(3, 896).to(torch.bfloat16)
    weight = torch.randn(896).to(torch.bfloat16)

    def normed(divisor: int = 896, stored: int = 896, last_first: bool = False) -> Tensor:
        out = torch.zeros(4, 896, dtype=torch.bfloat16)
        rms_norm_broken[(3,)](
            out, x, weight, 1e-6, N=896, TILE=1024,
            DIVISOR=divisor, STORED=stored, LAST_FIRST=last_first,
        )  # fmt: skip
        return out[:3]

    right = normed()
    ratio = (normed(divisor=1024).float() / right.float()).nanmedian()
    print(f"divided by TILE: {ratio - 1:.0%} too large")
    for order, last_first in (("row 0 first", False), ("row 2 first", True)):
        wrong = (normed(stored=1024, last_first=last_first) != right).sum()
        print(f"stored without a mask, {order}: {wrong} of {right.numel():,} numbers are wrong")


def compile_for_h200() -> None:
    """What the compiler made of the RMSNorm: its traffic with memory and between threads."""
    types = {"out": "*bf16", "x": "*bf16", "weight": "*bf16", "eps": "fp32"}
    constants = {"N": 1024, "TILE": 1024}
    place = rms_norm_row.arg_names.index
    source = ASTSource(
        fn=rms_norm_row,
        signature={name: types.get(name, "constexpr") for name in rms_norm_row.arg_names},
        constexprs={(place(name),): value for name, value in constants.items()},
        attrs={(place(n),): [["tt.divisibility", 16]] for n in ("out", "x", "weight")},
    )
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    told = r"^\s*(?:@\S+\s+)?((?:ld|st)\.global\S*|shfl\S*|bar\.sync|rsqrt\S*)"
    found = re.findall(told, made.asm["ptx"], re.MULTILINE)
    for instruction, group in groupby(found):
        print(f"{len(list(group))} x {instruction}")


if __name__ == "__main__":
    if sys.argv[1:] == ["compile"]:
        compile_for_h200()
    elif INTERPRETED:
        (run_broken if sys.argv[1:] == ["break"] else run)()
    else:  # Triton reads this when it is imported, so it takes a Python that begins with it
        again = [sys.executable, "-m", "course.first_kernel", *sys.argv[1:]]
        sys.exit(subprocess.call(again, env=os.environ | {"TRITON_INTERPRET": "1"}))
