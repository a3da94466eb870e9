"""Skinny matrix products on the tensor cores: batches of up to 16 tokens, weights read once.

    skinny_kernel:          out = x Wᵀ or RMSNorm(x) Wᵀ (+ bias) (+ out)
    skinny_gate_up_kernel:  out = silu(gate) · up,  (gate, up) = RMSNorm(x) Wᵀ
    reduce_kernel:          out = the partials of split K, added in order (+ out)

In, out: as gemv.py, with M up to 16. The tokens are padded to a tile of 16; padding costs
arithmetic, which is free here, and no bytes of the weight. K is a loop here, because a row of 16
tokens does not fit in registers beside the rows of a weight: held whole, as in gemv.py, they spill.
Triton pipelines the loop, so the bytes are in flight, but no weight is loaded above `pdl_wait`.

**Split K.** A weight of 1024 rows makes 64 such programs, for half of the multiprocessors. So
`splits` programs share a row: each leaves float32 partials (splits, M, N), and a second kernel adds
them in the order of the splits. Atomic adds would save that kernel, but the last bits would differ
from run to run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.activation import silu
from mini_engine.cuda.kernels.gemv import chunk_of, enough_programs
from mini_engine.cuda.kernels.launch import H200_SM_COUNT, launch_options, pdl_release, pdl_wait

MAX_SKINNY_TOKENS = 16  # rows of one tensor-core tile; above it a library's GEMM is better
TOKENS = tl.constexpr(MAX_SKINNY_TOKENS)  # rows of the tile of x
ROWS = 16  # of the weight in one program
WARPS, STAGES = 4, 4  # stages: chunks of the loop over K that are in flight
REDUCE_BLOCK = 512  # columns a program of the reduction


@dataclass(frozen=True)
class SkinnyPlan:
    """A program multiplies ROWS rows by `split_width` columns, `chunk` columns at a time; `splits`
    programs share the rows, and their partials are added."""

    chunk: int
    split_width: int
    splits: int


def skinny_plan(
    num_rows: int, width: int, *, split: bool = False, sm_count: int = H200_SM_COUNT
) -> SkinnyPlan:
    """The plan for up to 16 tokens. `split` allows several programs to share a row."""
    chunk = chunk_of(width, 128)
    chunks, splits = -(-width // chunk), 1
    enough = enough_programs(sm_count) // 2
    while split and 2 * splits <= chunks and -(-num_rows // ROWS) * splits < enough:
        splits *= 2
    return SkinnyPlan(chunk, -(-chunks // splits) * chunk, splits)


# ---------------------------------------------------------------- the kernels


@triton.jit
def load_tile(matrix, row, rows, column, K: tl.constexpr):
    """Tile (len(row), len(column)) of a matrix (rows, K), zeros beyond it."""
    inside = (row < rows)[:, None] & (column < K)[None, :]
    at = matrix + row[:, None].to(tl.int64) * K + column[None, :]
    return tl.load(at, mask=inside, other=0.0)


@triton.jit
def scaled_tokens(tile, squares, norm_weight, column, K: tl.constexpr, NORM: tl.constexpr):
    """The tile of x times the norm's weight, in its dtype; each token's running sum of squares."""
    if NORM:
        value = tile.to(tl.float32)
        squares += tl.sum(value * value, axis=1)
        scales = tl.load(norm_weight + column, mask=column < K, other=0.0).to(tl.float32)
        tile = (value * scales[None, :]).to(tile.dtype)
    return tile, squares


@triton.jit
def skinny_kernel(
    out,
    x,
    norm_weight,
    weight,
    bias,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    SPLIT_WIDTH: tl.constexpr,
    NORM: tl.constexpr,
    BIAS: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (i, split): ROWS rows, SPLIT_WIDTH columns; out (M, N) or partials (splits, M, N)."""
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    start = tl.program_id(1) * SPLIT_WIDTH
    pdl_wait(PDL)
    acc = tl.zeros((TOKENS, ROWS), tl.float32)
    squares = tl.zeros((TOKENS,), tl.float32)
    for c in range(0, SPLIT_WIDTH, CHUNK):
        column = start + c + tl.arange(0, CHUNK)
        tile = load_tile(x, token, M, column, K)
        tile, squares = scaled_tokens(tile, squares, norm_weight, column, K, NORM)
        rows = load_tile(weight, row, N, column, K)
        acc = tl.dot(tile, tl.trans(rows), acc, input_precision="ieee")
    if NORM:
        acc *= tl.rsqrt(squares / K + eps)[:, None]
    if BIAS:
        acc += tl.load(bias + row, mask=row < N, other=0.0).to(tl.float32)[None, :]
    inside = (token < M)[:, None] & (row < N)[None, :]
    at = out + (tl.program_id(1) * M + token)[:, None] * N + row[None, :]
    if ADD:
        acc += tl.load(at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    tl.store(at, acc.to(out.dtype.element_ty), mask=inside)


@triton.jit
def skinny_gate_up_kernel(
    out,
    x,
    norm_weight,
    weight,
    eps,
    M: tl.constexpr,
    N: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program i: ROWS rows of gate and the same rows of up. N: I."""
    pdl_release(PDL)
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    token = tl.arange(0, TOKENS)
    pdl_wait(PDL)
    gate = tl.zeros((TOKENS, ROWS), tl.float32)
    up = tl.zeros((TOKENS, ROWS), tl.float32)
    squares = tl.zeros((TOKENS,), tl.float32)
    for c in range(0, K, CHUNK):
        column = c + tl.arange(0, CHUNK)
        tile = load_tile(x, token, M, column, K)
        tile, squares = scaled_tokens(tile, squares, norm_weight, column, K, True)
        gate_rows = load_tile(weight, row, N, column, K)
        up_rows = load_tile(weight + N * K, row, N, column, K)
        gate = tl.dot(tile, tl.trans(gate_rows), gate, input_precision="ieee")
        up = tl.dot(tile, tl.trans(up_rows), up, input_precision="ieee")
    inverse = tl.rsqrt(squares / K + eps)[:, None]
    product = silu(gate * inverse) * (up * inverse)
    inside = (token < M)[:, None] & (row < N)[None, :]
    at = out + token[:, None] * N + row[None, :]
    tl.store(at, product.to(out.dtype.element_ty), mask=inside)


@triton.jit
def reduce_kernel(
    out,
    partials,
    SIZE: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ADD: tl.constexpr,
    PDL: tl.constexpr,
):
    """out (SIZE,) = partials[0] + partials[1] + ... (+ out), in this order."""
    pdl_release(PDL)
    pdl_wait(PDL)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < SIZE
    total = tl.zeros((BLOCK,), tl.float32)
    for split in tl.static_range(SPLITS):
        total += tl.load(partials + split * SIZE + at, mask=inside, other=0.0, cache_modifier=".cg")
    if ADD:
        total += tl.load(out + at, mask=inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    tl.store(out + at, total.to(out.dtype.element_ty), mask=inside)


# ---------------------------------------------------------------- launches (the ops: linear.py)


def launch_skinny(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
    plan: SkinnyPlan,
) -> None:
    """Already checked; M at most MAX_SKINNY_TOKENS. A plan may have splits only where there is no
    norm, which needs the whole row, and no bias."""
    num_rows, width = weight.shape
    options, splits, target = launch_options(pdl, x.device), plan.splits, out
    if splits > 1:
        target = torch.empty(splits, *out.shape, dtype=torch.float32, device=out.device)
    skinny_kernel[(triton.cdiv(num_rows, ROWS), splits)](
        target, x, norm_weight, weight, bias, eps, M=len(x), N=num_rows, K=width,
        ROWS=ROWS, CHUNK=plan.chunk, SPLIT_WIDTH=plan.split_width,
        NORM=norm_weight is not None, BIAS=bias is not None, ADD=add and splits == 1,
        num_warps=WARPS, num_stages=STAGES, **options,
    )  # fmt: skip
    if splits > 1:
        size = out.numel()
        reduce_kernel[(triton.cdiv(size, REDUCE_BLOCK),)](
            out, target, SIZE=size, SPLITS=splits, BLOCK=REDUCE_BLOCK, ADD=add, **options
        )


def launch_skinny_gate_up(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    pdl: bool,
    plan: SkinnyPlan,
) -> None:
    """As above, with a weight (2I, K), out (M, I) and a plan without splits."""
    num_pairs, width = weight.shape[0] // 2, weight.shape[1]
    skinny_gate_up_kernel[(triton.cdiv(num_pairs, ROWS),)](
        out, x, norm_weight, weight, eps, M=len(x), N=num_pairs, K=width, ROWS=ROWS,
        CHUNK=plan.chunk, num_warps=WARPS, num_stages=STAGES, **launch_options(pdl, x.device),
    )  # fmt: skip
