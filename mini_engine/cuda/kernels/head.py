"""The final norm, the LM head and the argmax over the vocabulary, in one kernel.

    logits = RMSNorm(x) Wᵀ;  of each program's rows the best score and its index

In:  x (M, K) with M up to 4, norm_weight (K,), weight (V, K), which may be the tied embedding.
Out: partials for pick.py, (M, `num_programs(V, K)`): values float32 and indices int32; and
     logits (M, V), in float32, as bf16 would often tie.

The weight is a quarter of a small model's step (Qwen3-0.6B: 311 of 1,192 MB). A program takes TILES
tiles of rows, spread over the vocabulary, so that the norm and the exit are paid once for all of
them. Tensor cores multiply, as in gemv_dot.py; other types than bf16, and widths too short for
them, are PyTorch's.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import MAX_GEMV_TOKENS, gemv_plan, load_vector
from mini_engine.cuda.kernels.gemv_dot import dot_input, dot_partials, dot_plan, dot_rows, fold
from mini_engine.cuda.kernels.launch import (
    H200_SM_COUNT,
    launch_options,
    pdl_release,
    pdl_wait,
    runs_triton,
    sm_count,
)
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.kernels.pick import best_of

TILES = 4  # tiles of rows a program


@triton.jit
def head_kernel(
    values, indices, logits, x, norm_weight, weight, eps, M: tl.constexpr, V: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    TILES: tl.constexpr, SLICES: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program p of P takes the tiles p, p + P, p + 2P, ...: their indices rise."""
    pdl_release(PDL)
    first = tl.program_id(0) * ROWS
    rows = dot_rows(weight, first, V, K, 1, ROWS, CHUNK, CHUNKS, SLICES)
    gains = load_vector(norm_weight, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    # x of every token is normed once and then held, for all tiles; beside it each token's best.
    inputs = ()
    bests = ()
    for m in tl.static_range(M):
        raw = load_vector(x + m * K, K, CHUNK, CHUNKS, ".cg")
        operands, squares = dot_input(raw, gains, CHUNK, CHUNKS, SLICES, True)
        inverse = tl.rsqrt(tl.sum(tl.sum(squares, axis=1), axis=0) / K + eps)
        inputs = inputs + ((operands, inverse),)
        bests = bests + ((float("-inf"), 0),)
    for t in tl.static_range(TILES):
        if t > 0:  # unrolled: these loads leave before the tile in front of them is summed up
            first = (t * tl.num_programs(0) + tl.program_id(0)) * ROWS
            rows = dot_rows(weight, first, V, K, 1, ROWS, CHUNK, CHUNKS, SLICES)
        row = first + tl.arange(0, ROWS)
        updated = ()
        for m in tl.static_range(M):
            operands, inverse = inputs[m]
            places = dot_partials(rows, operands, ROWS, CHUNKS, SLICES, True)
            scores = fold(tl.sum(places, axis=1), ROWS) * inverse
            tl.store(logits + m * V + row, scores, mask=row < V)
            # of equal scores the first wins, since a program's indices rise
            value, index = best_of(scores, row, row < V)
            better = value > bests[m][0]
            best = tl.where(better, value, bests[m][0]), tl.where(better, index, bests[m][1])
            updated = updated + (best,)
        bests = updated
    for m in tl.static_range(M):
        partial = m * tl.num_programs(0) + tl.program_id(0)
        tl.store(values + partial, bests[m][0])
        tl.store(indices + partial, bests[m][1])


@torch.library.custom_op("launch_bound::norm_lm_head", mutates_args=("values", "indices", "logits"))
def norm_lm_head(
    values: Tensor, indices: Tensor, logits: Tensor, x: Tensor, norm_weight: Tensor, weight: Tensor,
    eps: float, pdl: bool = False,
) -> None:  # fmt: skip
    """Shapes as at the top of the file. ValueError also for more than 4 tokens."""
    vocab, width = weight.shape
    if len(x) > MAX_GEMV_TOKENS:
        raise ValueError(f"{len(x)} rows > {MAX_GEMV_TOKENS}: use torch.nn.functional.linear")
    sms = sm_count(x.device)
    programs = num_programs(vocab, width, sms)
    for name, partials in (("values", values), ("indices", indices)):
        check_shape(name, partials, (len(x), programs))
    check_shape("logits", logits, (len(x), vocab))
    plan = dot_plan(gemv_plan(vocab, width, sm_count=sms), x, norm_weight, weight)
    if plan is None or not runs_triton(x):
        scores = product_reference(x, norm_weight, weight, None, eps)
        logits.copy_(scores)
        # the best of all of a row's scores is its first partial; the others never win
        values.fill_(-torch.inf)
        indices.zero_()
        number = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
        values[:, 0], indices[:, 0] = number.amax(dim=-1), number.argmax(dim=-1).int()
        return
    head_kernel[(programs,)](
        values, indices, logits, x, norm_weight, weight, eps, M=len(x), V=vocab, K=width,
        ROWS=plan.rows, CHUNK=plan.chunk, CHUNKS=plan.chunks, TILES=TILES,
        SLICES=plan.warps, num_warps=plan.warps, **launch_options(pdl, x.device),
    )  # fmt: skip


def num_programs(vocab_size: int, width: int, sm_count: int = H200_SM_COUNT) -> int:
    """Programs of the head, and so partials of a row. A tile is a tile of `gemv_plan`."""
    plan = gemv_plan(vocab_size, width, sm_count=sm_count)
    return -(-plan.num_programs(vocab_size) // TILES)
