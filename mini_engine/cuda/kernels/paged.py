"""What the attention kernels share: the shape of heads and cache, and the steps of a softmax that
is computed tile by tile and split by split.

A **split** is the share of a context that one program handles. What it leaves is its **partial**,
under its own maximum and not divided by anything (Milakov & Gimelshein 2018, arXiv 1805.02867):

    m    the largest score                        in stats[..., 0]
    l    the sum of exp(score - m)                in stats[..., 1]
    acc  the sum of exp(score - m) · value (D,)   in sums
"""

# ruff: noqa: RUF005 (Triton has no (*tuple, item))
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

LOWEST = tl.constexpr(-1e30)  # below every score; LOWEST - LOWEST is 0 where -inf would be NaN


@dataclass(frozen=True)
class Heads:
    """How many heads a row of q has, and how many rows a block of the cache."""

    num_heads: int  # of q
    num_kv_heads: int  # of k and of v; divides num_heads
    head_dim: int
    block_size: int  # tokens a block

    @property
    def group_size(self) -> int:
        """Query heads that read one KV head (grouped-query attention, arXiv 2305.13245)."""
        return self.num_heads // self.num_kv_heads

    @property
    def padded_group(self) -> int:
        """Rows of the tile that holds a group: tensor cores multiply at least 16 rows."""
        return max(16, triton.next_power_of_2(self.group_size))

    @property
    def qkv_size(self) -> int:
        """Columns of the merged product."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def constants(self) -> dict[str, int]:
        """What the attention kernels are compiled for."""
        return {"KV_HEADS": self.num_kv_heads, "GROUP": self.group_size,
                "HEAD_DIM": self.head_dim, "BLOCK_SIZE": self.block_size}  # fmt: skip

    @classmethod
    def of(cls, q: Tensor, k_cache: Tensor) -> Heads:
        """Of q (T, heads · D) and a cache (num_blocks, block_size, kv_heads, D)."""
        _, block_size, kv_heads, head_dim = k_cache.shape
        return cls(q.shape[1] // head_dim, kv_heads, head_dim, block_size)


def attention_reference(
    out: Tensor, q: Tensor, k_cache: Tensor, v_cache: Tensor, block_table: Tensor,
    query_lens: Tensor, context_lens: Tensor,
) -> None:  # fmt: skip
    """What prefill.py says: request by request, in float32, rounded once at the end."""
    heads = Heads.of(q, k_cache)
    first = 0
    for r, (chunk, context) in enumerate(
        zip(query_lens.tolist(), context_lens.tolist(), strict=True)
    ):
        if chunk == 0:
            continue
        blocks = block_table[r, : -(-context // heads.block_size)].long()
        keys, values = (
            cache[blocks].flatten(0, 1)[:context].float() for cache in (k_cache, v_cache)
        )
        query = q[first : first + chunk].float()
        query = query.view(chunk, heads.num_kv_heads, heads.group_size, heads.head_dim)
        scores = torch.einsum("thgd,nhd->hgtn", query, keys) * heads.head_dim**-0.5
        seen = torch.ones(chunk, context, dtype=torch.bool, device=q.device)
        scores.masked_fill_(~seen.tril(diagonal=context - chunk), -torch.inf)
        rows = torch.einsum("hgtn,nhd->thgd", scores.softmax(dim=-1), values)
        out[first : first + chunk] = rows.flatten(1).to(q.dtype)
        first += chunk


def new_partials(
    num_reqs: int, heads: Heads, splits: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """sums (R, heads, splits, D) and stats (R, heads, splits, 2), float32, not initialised."""
    shape = (num_reqs, heads.num_heads, splits)
    sums = torch.empty(*shape, heads.head_dim, dtype=torch.float32, device=device)
    return sums, torch.empty(*shape, 2, dtype=torch.float32, device=device)


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    """The row of the cache, int64, of each token of a request. Block b has BLOCK_SIZE rows, from
    b · BLOCK_SIZE on.

    table: the request's row of the block table, int32, one block for every BLOCK_SIZE tokens. For a
    token that is not `inside`, no block is loaded and the row means nothing.
    """
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    return block * BLOCK_SIZE + token % BLOCK_SIZE


@triton.jit
def online_softmax(scores, valid, values, m, l, acc):
    """Take in one more tile: returns m, l and acc with it.

    scores (rows, tile) float32; valid, of that shape or broadcast to it: which of them count;
    values (tile, D). So far, in float32: m (rows,), the largest score, at first LOWEST; l (rows,),
    the sum of exp(score - m); acc (rows, D), the sum of exp(score - m) · value. A score that is not
    valid has weight 0, whatever number it is. Both operands of `tl.dot` must have the dtype of
    values; input_precision="ieee" keeps all bits of float32 on tensor cores.
    """
    # What does not count must not raise the maximum, and must have no weight under it either.
    scores = tl.where(valid, scores, LOWEST)
    m_new = tl.maximum(m, tl.max(scores, axis=1))
    weights = tl.where(valid, tl.exp(scores - m_new[:, None]), 0.0)
    # What came before was summed under the old maximum.
    keep = tl.exp(m - m_new)
    l = l * keep + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * keep[:, None], input_precision="ieee")
    return m_new, l, acc


@triton.jit
def store_partial(sums, stats, partial, live, m, l, acc, HEAD_DIM: tl.constexpr):
    """Leave partials of heads at partial (rows,) = head · splits + split; live: real heads."""
    at = sums + partial[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(at, acc, mask=live[:, None])
    tl.store(stats + partial * 2, m, mask=live)
    tl.store(stats + partial * 2 + 1, l, mask=live)


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    """One head's result (HEAD_DIM,), float32: softmax · values over the keys of all its SPLITS.

    Partial head · SPLITS + s lies in sums (HEAD_DIM numbers: acc) and in stats (2 numbers: m, l),
    as `store_partial` left it. A split without keys has LOWEST, 0 and zeros; a head without keys
    gets zeros. PADDED is the power of two at or above SPLITS; there are no partials from SPLITS on.
    Other programs wrote them, perhaps just now (`combine_if_last`), so load them with ".cg".
    """
    split = tl.arange(0, PADDED)
    inside = split < SPLITS
    d = tl.arange(0, HEAD_DIM)
    partial = head * SPLITS + split
    m = tl.load(stats + partial * 2, mask=inside, other=LOWEST, cache_modifier=".cg")
    l = tl.load(stats + partial * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
    at = partial[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(sums + at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
    # Each split summed under its own maximum: bring all to the largest one, then divide once.
    weight = tl.exp(m - tl.max(m, axis=0))
    whole = tl.sum(l * weight, axis=0)
    return tl.sum(acc * weight[:, None], axis=0) / tl.where(whole > 0.0, whole, 1.0)


@triton.jit
def combine_if_last(
    out, sums, stats, counter, head, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """After `store_partial`: the program that arrives last combines GROUP heads from `head` on. Why
    that is correct (PTX ISA, "Memory Consistency Model"): the block's barrier orders the stores of
    all its threads before one thread's atomic add, and release is cumulative, so the add (acq_rel,
    GPU scope) publishes them. The program that reads SPLITS - 1 has acquired every other program's
    add, and through a second barrier so have all its threads. The counter returns to 0 for the next
    launch. Sums run in the order of the splits, whoever is last."""
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel")
    if arrived == SPLITS - 1:
        at = tl.arange(0, HEAD_DIM)
        rows = ()  # no store stands between two heads: their loads may leave together
        for i in tl.static_range(GROUP):
            rows = rows + (combine(sums, stats, head + i, HEAD_DIM, SPLITS, PADDED),)
        for i in tl.static_range(GROUP):
            tl.store(out + (head + i) * HEAD_DIM + at, rows[i].to(out.dtype.element_ty))
        tl.store(counter, 0)
