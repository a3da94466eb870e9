"""The head's kernel with the alternatives of gemv_variants.py. In and out as in head.py."""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.gemv_choice import Variant, words_of
from mini_engine.cuda.kernels.gemv_variants import (
    gains_of,
    load_input,
    prepared,
    times,
    weight_rows,
)
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait
from mini_engine.cuda.kernels.pick import best_of


@triton.jit
def head_variant_kernel(
    values, indices, logits, x, norm_weight, weight, eps, M: tl.constexpr, V: tl.constexpr,
    K: tl.constexpr, ROWS: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr,
    TILES: tl.constexpr, LOGITS: tl.constexpr, PRODUCT: tl.constexpr, SLICES: tl.constexpr,
    CACHE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """`head_kernel` of head.py; x, weight and norm_weight are int32 for "pairs"."""
    pdl_release(PDL)
    first = tl.program_id(0) * ROWS
    rows = weight_rows(weight, first, V, K, 1, ROWS, CHUNK, CHUNKS, PRODUCT, SLICES)
    gains = gains_of(norm_weight, K, CHUNK, CHUNKS, PRODUCT)
    pdl_wait(PDL)
    inputs = ()
    bests = ()
    for m in tl.static_range(M):
        raw = load_input(x, m, K, CHUNK, CHUNKS, PRODUCT, CACHE)
        ready = prepared(raw, gains, eps, K, CHUNK, CHUNKS, True, PRODUCT, SLICES)
        inputs = inputs + (ready,)
        bests = bests + ((float("-inf"), 0),)
    for t in tl.static_range(TILES):
        if t > 0:
            first += tl.num_programs(0) * ROWS
            rows = weight_rows(weight, first, V, K, 1, ROWS, CHUNK, CHUNKS, PRODUCT, SLICES)
        row = first + tl.arange(0, ROWS)
        updated = ()
        for m in tl.static_range(M):
            sums = times(rows, inputs[m][0], ROWS, CHUNK, CHUNKS, True, PRODUCT, SLICES)
            scores = sums * inputs[m][1]
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


def launch_head(
    values: Tensor,
    indices: Tensor,
    logits: Tensor | None,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    tiles: int,
    pdl: bool,
    variant: Variant,
) -> None:
    """Shapes as in head.py, already checked; a program for each column of `values`."""
    vocab, width = weight.shape
    gemv = variant.gemv
    x_read, norm_read, weight_read = words_of(variant.product, x, norm_weight, weight)
    head_variant_kernel[(values.shape[1],)](
        values, indices, logits, x_read, norm_read, weight_read, eps, M=len(x), V=vocab, K=width,
        ROWS=gemv.rows, CHUNK=gemv.chunk, CHUNKS=gemv.chunks, TILES=tiles,
        LOGITS=logits is not None, **variant.constants,
        num_warps=gemv.warps, **launch_options(pdl, x.device),
    )  # fmt: skip
