"""RoPE on q and k, after the norms of Qwen3, and K and V written into the paged cache.

    q, k:  x = RMSNorm(x) · weight, over each head (Qwen3 only; q_norm and k_norm may be None)
           left  = left · cos - right · sin
           right = right · cos + left · sin         (Su et al. 2021, RoFormer, arXiv 2104.09864)
    k, v:  cache[slot_mapping[t]] = the head

A head is rotated by its halves, as Hugging Face stores the weights, not by even and odd columns.

In:  qkv (T, q + 2kv): the merged product; positions, slot_mapping (T,) int32 or int64;
     cos, sin (max_position, D/2) float32; q_norm, k_norm (D,): the weights of the norms, or None.
Out: q (T, q) rotated; k_cache, v_cache (num_blocks, block_size, kv_heads, D), written in place.

A slot is block · block_size + offset (Kwon et al. 2023, arXiv 2309.06180). Block 0 is the **null
block**: padded rows have slot 0, they write there in any order, and nobody reads it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.norm import rms_norm_reference
from mini_engine.cuda.kernels.paged import Heads


@triton.jit
def head_norm(left, right, weight_left, weight_right, eps, HEAD_DIM: tl.constexpr):
    """RMSNorm over the last axis of a head held as two halves, float32. Returns both halves."""
    total = tl.sum(left * left + right * right, axis=-1, keep_dims=True)
    inverse = tl.rsqrt(total / HEAD_DIM + eps)
    return left * inverse * weight_left, right * inverse * weight_right


@triton.jit
def rope_kv_write_kernel(
    q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, q_norm, k_norm, eps,
    Q_HEADS: tl.constexpr, KV_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr, QK_NORM: tl.constexpr,
    PDL: tl.constexpr,
):  # fmt: skip
    """Program (token, head): heads 0 to Q_HEADS - 1 are those of q, the next KV_HEADS those of k.

    The program of a k head also stores its v, not turned. A row of qkv has Q_HEADS heads of q, then
    KV_HEADS of k, then KV_HEADS of v, each HEAD_DIM wide; a row of the caches, slot_mapping[token],
    has KV_HEADS heads. cos and sin have a row of HEAD_DIM // 2 for each position. With QK_NORM a
    head of q or k goes through `head_norm` before it is rotated, with q_norm or k_norm (HEAD_DIM,).
    Everything is computed in float32 and rounded where it is stored. Every number of qkv is read
    once. It and positions and slot_mapping were written by the step: they are read past L1 (".cg").
    Offsets in int64: a cache may have more than 2³¹ numbers. `pdl_release(PDL)` comes first; above
    `pdl_wait(PDL)` only the weights of the norms are loaded, which no kernel writes. HEAD_DIM is a
    power of two.
    """
    pdl_release(PDL)
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    half: tl.constexpr = HEAD_DIM // 2
    pair = tl.arange(0, half)
    is_q = head < Q_HEADS
    # Above the wait: the norm's weight, which no kernel of the step writes.
    if QK_NORM:
        weight = q_norm if is_q else k_norm
        weight_left = tl.load(weight + pair).to(tl.float32)
        weight_right = tl.load(weight + half + pair).to(tl.float32)
    pdl_wait(PDL)
    position = tl.load(positions + token, cache_modifier=".cg").to(tl.int64)
    c = tl.load(cos + position * half + pair)
    s = tl.load(sin + position * half + pair)
    source = qkv + (token * (Q_HEADS + 2 * KV_HEADS) + head) * HEAD_DIM + pair
    left = tl.load(source, cache_modifier=".cg").to(tl.float32)
    right = tl.load(source + half, cache_modifier=".cg").to(tl.float32)
    if QK_NORM:
        left, right = head_norm(left, right, weight_left, weight_right, eps, HEAD_DIM)
    # A pair is one number of each half: a head is turned without moving data between threads.
    rotated_left = left * c - right * s
    rotated_right = right * c + left * s
    if is_q:
        target = q + (token * Q_HEADS + head) * HEAD_DIM + pair
        tl.store(target, rotated_left.to(q.dtype.element_ty))
        tl.store(target + half, rotated_right.to(q.dtype.element_ty))
    else:
        # A head of k goes to its slot of the cache, and its v with it: one program stores both.
        slot = tl.load(slot_mapping + token, cache_modifier=".cg").to(tl.int64)
        kv_head = head - Q_HEADS
        row = (slot * KV_HEADS + kv_head) * HEAD_DIM + pair
        tl.store(k_cache + row, rotated_left.to(k_cache.dtype.element_ty))
        tl.store(k_cache + row + half, rotated_right.to(k_cache.dtype.element_ty))
        values = source + KV_HEADS * HEAD_DIM
        v_left = tl.load(values, cache_modifier=".cg")
        v_right = tl.load(values + half, cache_modifier=".cg")
        tl.store(v_cache + row, v_left)
        tl.store(v_cache + row + half, v_right)


@torch.library.custom_op("launch_bound::rope_kv_write", mutates_args=("q", "k_cache", "v_cache"))
def rope_kv_write(
    q: Tensor, k_cache: Tensor, v_cache: Tensor, qkv: Tensor, positions: Tensor,
    slot_mapping: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor | None = None,
    k_norm: Tensor | None = None, eps: float = 1e-6, pdl: bool = False,
) -> None:  # fmt: skip
    """Shapes as at the top of the file."""
    heads = Heads.of(q, k_cache)
    check_shape("qkv", qkv, (len(q), heads.qkv_size))
    if not runs_triton(q):
        rotated, keys, values = rope_reference(heads, qkv, positions, cos, sin, q_norm, k_norm, eps)
        q.copy_(rotated.flatten(1))
        for cache, new in ((k_cache, keys), (v_cache, values)):
            cache.flatten(0, 1)[slot_mapping.long()] = new
        return
    rope_kv_write_kernel[(len(qkv), heads.num_heads + heads.num_kv_heads)](
        q, k_cache, v_cache, qkv, positions, slot_mapping, cos, sin, q_norm, k_norm, eps,
        Q_HEADS=heads.num_heads, KV_HEADS=heads.num_kv_heads, HEAD_DIM=heads.head_dim,
        QK_NORM=q_norm is not None, num_warps=1, **launch_options(pdl, q.device),
    )  # fmt: skip


def rope_reference(
    heads: Heads, qkv: Tensor, positions: Tensor, cos: Tensor, sin: Tensor, q_norm: Tensor | None,
    k_norm: Tensor | None, eps: float,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """q (T, heads, D), k and v (T, kv_heads, D): in float32, each rounded once at the end."""
    counts = [heads.num_heads, heads.num_kv_heads, heads.num_kv_heads]
    q, k, v = torch.split(qkv.view(len(qkv), -1, heads.head_dim), counts, dim=1)
    if q_norm is not None and k_norm is not None:
        q = rms_norm_reference(q.float(), q_norm, eps)
        k = rms_norm_reference(k.float(), k_norm, eps)
    c, s = cos[positions.long()].unsqueeze(1), sin[positions.long()].unsqueeze(1)  # (T, 1, D/2)

    def rotated(x: Tensor) -> Tensor:
        left, right = x.float().chunk(2, dim=-1)
        return torch.cat([left * c - right * s, right * c + left * s], dim=-1).to(qkv.dtype)

    return rotated(q), rotated(k), v
