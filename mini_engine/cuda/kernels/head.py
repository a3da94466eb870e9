"""The final norm, the LM head and the argmax over the vocabulary, without writing the logits.

    logits = RMSNorm(x) Wᵀ;  of each program's rows the best score and its index

In:  x (M, K) with M up to 4, norm_weight (K,), weight (V, K), which may be the tied embedding.
Out: partials for pick.py, (M, `num_programs(V, K)`): values float32 and indices int32; if asked
     for, also logits (M, V) float32: a benchmark's correctness gate needs them, greedy decoding
     does not.

Bytes: the weight, read once; it is a quarter of a small model's step (Qwen3-0.6B: 311 of 1,192 MB).
Logits in bf16 would often tie: they have 8 bits of precision for 151,936 values. Here they stay
float32.

A program takes TILES tiles of rows, spread over the vocabulary, so that the norm and the exit are
paid once for all of them; the first tile is loaded above `pdl_wait`. Above 4 tokens, take the
argmax of logits that a library's GEMM computes.
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.gemv import (
    MAX_GEMV_TOKENS,
    gemv_plan,
    load_rows,
    load_vector,
    multiply,
    scaled_input,
)
from mini_engine.cuda.kernels.gemv_choice import variant_of
from mini_engine.cuda.kernels.head_variants import launch_head
from mini_engine.cuda.kernels.launch import (
    H200_SM_COUNT,
    launch_options,
    pdl_release,
    pdl_wait,
    runs_triton,
    sm_count,
)
from mini_engine.cuda.kernels.linear import product_reference
from mini_engine.cuda.kernels.pick import best_of, fill_partials
from mini_engine.cuda.kernels.plans import BASE, plan_of

TILES = 4  # tiles of rows a program


@triton.jit
def head_kernel(
    values,
    indices,
    logits,
    x,
    norm_weight,
    weight,
    eps,
    M: tl.constexpr,
    V: tl.constexpr,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
    TILES: tl.constexpr,
    LOGITS: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program p of P takes the tiles p, p + P, p + 2P, ...: their indices rise."""
    pdl_release(PDL)
    stride = tl.num_programs(0) * ROWS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    rows = load_rows(weight, row, V, K, CHUNK, CHUNKS)
    scales = load_vector(norm_weight, K, CHUNK, CHUNKS)
    pdl_wait(PDL)
    inputs = ()
    bests = ()
    for m in tl.static_range(M):
        inputs = inputs + (scaled_input(x + m * K, scales, eps, K, CHUNK, CHUNKS, True),)
        bests = bests + ((float("-inf"), 0),)
    for t in tl.static_range(TILES):
        if t > 0:
            row += stride
            rows = load_rows(weight, row, V, K, CHUNK, CHUNKS)
        updated = ()
        for m in tl.static_range(M):
            scores = multiply(rows, inputs[m][0], ROWS, CHUNK, CHUNKS) * inputs[m][1]
            if LOGITS:
                tl.store(logits + m * V + row, scores, mask=row < V)
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
    values: Tensor,
    indices: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    logits: Tensor | None = None,
    pdl: bool = False,
    plan: str = BASE,
) -> None:
    """Shapes as at the top of the file. ValueError also for more than 4 tokens."""
    choice = plan_of(plan)
    vocab, width = weight.shape
    if len(x) > MAX_GEMV_TOKENS:
        raise ValueError(
            f"{len(x)} rows > {MAX_GEMV_TOKENS}: compute the logits with "
            "torch.nn.functional.linear and take their argmax"
        )
    sms = sm_count(x.device)
    programs = num_programs(vocab, width, sms)
    check_shape("x", x, (len(x), width))
    check_shape("norm_weight", norm_weight, (width,))
    check_shape("weight", weight, (vocab, width))
    check_shape("values", values, (len(x), programs))
    check_shape("indices", indices, (len(x), programs))
    if logits is not None:
        check_shape("logits", logits, (len(x), vocab))
    if not runs_triton(x):
        scores = product_reference(x, norm_weight, weight, None, eps)
        if logits is not None:
            logits.copy_(scores)
        fill_partials(values, indices, scores)
        return
    gemv = gemv_plan(vocab, width, sm_count=sms)
    variant = variant_of(choice, gemv, gemv.rows * width, x, norm_weight, weight)
    gemv = variant.gemv
    if not variant.is_base:
        launch_head(values, indices, logits, x, norm_weight, weight, eps, TILES, pdl, variant)
        return
    head_kernel[(programs,)](
        values, indices, logits, x, norm_weight, weight, eps, M=len(x), V=vocab, K=width,
        ROWS=gemv.rows, CHUNK=gemv.chunk, CHUNKS=gemv.chunks, TILES=TILES,
        LOGITS=logits is not None, num_warps=gemv.warps, **launch_options(pdl, x.device),
    )  # fmt: skip


def num_programs(vocab_size: int, width: int, sm_count: int = H200_SM_COUNT) -> int:
    """Programs of the head, and so partials of a row. A tile is a tile of `gemv_plan`."""
    plan = gemv_plan(vocab_size, width, sm_count=sm_count)
    return -(-plan.num_programs(vocab_size) // TILES)
