"""Decode attention as one would first write it: a program for each query head. A teaching version.

    out = softmax(q kᵀ / √D) v,  over the first context_lens[r] keys of request r

In, out: as mini_engine/cuda/kernels/attention.py, which mends its two faults:

* 16 query heads are 16 programs on a GPU of 132 multiprocessors, and each walks its whole context
  alone, so the time grows with the context while most of the GPU is idle;
* every query head reads its KV head again, so for Qwen3-0.6B each key and value is read twice.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.attention import TILE
from mini_engine.cuda.kernels.paged import LOWEST, Heads, cache_rows


@triton.jit
def decode_naive_kernel(
    out,
    q,
    k_cache,
    v_cache,
    block_table,
    context_lens,
    scale,
    table_stride,
    KV_HEADS: tl.constexpr,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    TILE: tl.constexpr,
):
    """Program (request, query head): tile after tile."""
    request, head = tl.program_id(0), tl.program_id(1)
    d = tl.arange(0, HEAD_DIM)
    mine = (request * KV_HEADS * GROUP + head) * HEAD_DIM + d
    query = tl.load(q + mine).to(tl.float32) * scale
    context = tl.load(context_lens + request)
    m = tl.full((), LOWEST, tl.float32)
    l = tl.zeros((), tl.float32)
    acc = tl.zeros((HEAD_DIM,), tl.float32)
    for start in range(0, context, TILE):
        token = start + tl.arange(0, TILE)
        inside = token < context
        row = cache_rows(block_table + request * table_stride, token, inside, BLOCK_SIZE)
        at = (row * KV_HEADS + head // GROUP)[:, None] * HEAD_DIM + d[None, :]
        keys = tl.load(k_cache + at, mask=inside[:, None], other=0.0).to(tl.float32)
        scores = tl.where(inside, tl.sum(keys * query[None, :], axis=1), LOWEST)
        m_new = tl.maximum(m, tl.max(scores, axis=0))
        weights = tl.exp(scores - m_new)  # outside the context: exp(-1e30) = 0
        keep = tl.exp(m - m_new)
        values = tl.load(v_cache + at, mask=inside[:, None], other=0.0).to(tl.float32)
        acc = acc * keep + tl.sum(weights[:, None] * values, axis=0)
        l = l * keep + tl.sum(weights, axis=0)
        m = m_new
    result = acc / tl.where(context > 0, l, 1.0)
    tl.store(out + mine, result.to(out.dtype.element_ty))


def decode_attention_naive(
    out: Tensor,
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
) -> None:
    """The same answer from the naive kernel: for the lesson and its measurement, not an op."""
    heads = Heads.of(q, k_cache)
    decode_naive_kernel[(len(q), heads.num_heads)](
        out, q, k_cache, v_cache, block_table, context_lens, scale=heads.head_dim**-0.5,
        table_stride=block_table.stride(0), **heads.constants, TILE=TILE, num_warps=1,
    )  # fmt: skip
