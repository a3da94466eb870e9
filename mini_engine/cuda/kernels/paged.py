"""What the attention kernels share: the shape of heads and cache, and the pieces of a softmax
that is computed tile by tile and split by split.

In:  q (T, q) and the two caches (num_blocks, block_size, kv_heads, D) of one layer.
Out: a `Heads`, or a ValueError that names the misfit; for the references, the keys and values of a
     request in order of position; for the kernels, the pieces.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.launch import check_shape

LOWEST = tl.constexpr(-1e30)  # below every score; LOWEST - LOWEST is 0 where -inf would be NaN


@dataclass(frozen=True)
class Heads:
    """How a row of q splits into heads, and a block into rows."""

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
        """Rows of the tile that holds a group: tensor cores multiply 16 rows at a time."""
        return max(16, triton.next_power_of_2(self.group_size))

    @property
    def qkv_size(self) -> int:
        """Columns of the merged product."""
        return (self.num_heads + 2 * self.num_kv_heads) * self.head_dim

    @property
    def constants(self) -> dict[str, int]:
        """What the attention kernels are compiled for."""
        return {
            "KV_HEADS": self.num_kv_heads,
            "GROUP": self.group_size,
            "HEAD_DIM": self.head_dim,
            "BLOCK_SIZE": self.block_size,
        }

    @classmethod
    def of(cls, q: Tensor, k_cache: Tensor, v_cache: Tensor) -> Heads:
        """Raises ValueError unless the three fit together and head_dim is a power of two >= 16."""
        if k_cache.dim() != 4:
            raise ValueError(
                f"k_cache is {tuple(k_cache.shape)}, expected "
                "(num_blocks, block_size, kv_heads, head_dim)"
            )
        check_shape("k_cache", k_cache, tuple(k_cache.shape))
        check_shape("v_cache", v_cache, tuple(k_cache.shape))
        _, block_size, kv_heads, head_dim = k_cache.shape
        if head_dim < 16 or head_dim != triton.next_power_of_2(head_dim):
            raise ValueError(
                f"head_dim {head_dim}: these kernels need a power of two of 16 or more; "
                "use the model without them"
            )
        if q.dim() != 2 or q.shape[1] % (kv_heads * head_dim):
            raise ValueError(
                f"q is {tuple(q.shape)}, expected (num_tokens, a multiple of {kv_heads} "
                f"kv_heads · head_dim {head_dim})"
            )
        check_shape("q", q, tuple(q.shape))
        return cls(q.shape[1] // head_dim, kv_heads, head_dim, block_size)

    def check_tables(self, num_reqs: int, block_table: Tensor, context_lens: Tensor) -> None:
        """Raises ValueError unless there is a row of the table and a length for each request."""
        check_table(block_table, num_reqs)
        check_shape("context_lens", context_lens, (num_reqs,))


def check_table(block_table: Tensor, num_reqs: int) -> None:
    """Raises ValueError unless it is (num_reqs, max_blocks). It may be the left part of a wider
    table: rows are found by their stride, and a graph need not copy the part that it uses."""
    if block_table.dim() != 2 or block_table.shape[0] != num_reqs or block_table.stride(1) != 1:
        raise ValueError(
            f"block_table is {tuple(block_table.shape)} with strides {block_table.stride()}, "
            f"expected ({num_reqs}, max_blocks), each row contiguous"
        )


def gather(cache: Tensor, blocks: Tensor, num_tokens: int) -> Tensor:
    """(num_tokens, kv_heads, D): one request's rows of a cache in order. blocks (max_blocks,)."""
    used = -(-num_tokens // cache.shape[1])
    return cache[blocks[:used].long()].flatten(0, 1)[:num_tokens]


def new_parts(
    num_reqs: int, heads: Heads, splits: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Where splits leave what they have: sums of values (R, heads, splits, D), and stats (R, heads,
    splits, 2): the largest score and the sum of weights. float32, not initialised."""
    shape = (num_reqs, heads.num_heads, splits)
    sums = torch.empty(*shape, heads.head_dim, dtype=torch.float32, device=device)
    return sums, torch.empty(*shape, 2, dtype=torch.float32, device=device)


@triton.jit
def cache_rows(table, token, inside, BLOCK_SIZE: tl.constexpr):
    """The row of the cache, int64, of each token of a request; block b has BLOCK_SIZE rows, from
    b · BLOCK_SIZE on.

    table: the request's row of the block table, int32, a block for every BLOCK_SIZE tokens. Of a
    token that is not `inside` no block is loaded, and its row means nothing.
    """
    block = tl.load(table + token // BLOCK_SIZE, mask=inside, other=0).to(tl.int64)
    return block * BLOCK_SIZE + token % BLOCK_SIZE


@triton.jit
def online_softmax(scores, valid, values, best, total, acc):
    """One tile more. Returns best, total and acc with it.

    scores (rows, tile) float32; valid, which of them count: of that shape, or broadcast to it;
    values (tile, D). So far: best (rows,), the largest score, at first LOWEST; total (rows,), the
    sum of exp(score - best); acc (rows, D), the same sum of values; all float32. A score that is
    not valid has weight 0, whatever it is. Both operands of `tl.dot` must have one dtype, that of
    values; input_precision="ieee" keeps float32 whole on tensor cores.
    """
    scores = tl.where(valid, scores, LOWEST)
    new_best = tl.maximum(best, tl.max(scores, axis=1))
    weights = tl.where(valid, tl.exp(scores - new_best[:, None]), 0.0)
    keep = tl.exp(best - new_best)
    total = total * keep + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(values.dtype), values, acc * keep[:, None], input_precision="ieee")
    return new_best, total, acc


@triton.jit
def store_part(sums, stats, part, live, best, total, acc, HEAD_DIM: tl.constexpr):
    """What a split has of some heads. part (rows,): head · splits + split; live: real rows."""
    at = sums + part[:, None] * HEAD_DIM + tl.arange(0, HEAD_DIM)[None, :]
    tl.store(at, acc, mask=live[:, None])
    tl.store(stats + part * 2, best, mask=live)
    tl.store(stats + part * 2 + 1, total, mask=live)


@triton.jit
def combine(sums, stats, head, HEAD_DIM: tl.constexpr, SPLITS: tl.constexpr, PADDED: tl.constexpr):
    """One head's row of HEAD_DIM, float32: softmax · values over all keys of its SPLITS parts.

    Part head · SPLITS + s lies in sums (HEAD_DIM numbers: acc) and in stats (2: best, total), as
    `store_part` left it; a split without keys has LOWEST, 0 and zeros, and a head without keys gets
    zeros. PADDED: the power of two at or above SPLITS; there are no parts from SPLITS on.
    Other programs wrote the parts, perhaps just now (`combine_if_last`): load them with ".cg".
    """
    split = tl.arange(0, PADDED)
    inside = split < SPLITS
    d = tl.arange(0, HEAD_DIM)
    part = head * SPLITS + split
    best = tl.load(stats + part * 2, mask=inside, other=LOWEST, cache_modifier=".cg")
    total = tl.load(stats + part * 2 + 1, mask=inside, other=0.0, cache_modifier=".cg")
    at = part[:, None] * HEAD_DIM + d[None, :]
    acc = tl.load(sums + at, mask=inside[:, None], other=0.0, cache_modifier=".cg")
    weight = tl.exp(best - tl.max(best, axis=0))
    whole = tl.sum(total * weight, axis=0)
    return tl.sum(acc * weight[:, None], axis=0) / tl.where(whole > 0.0, whole, 1.0)


@triton.jit
def combine_if_last(
    out,
    sums,
    stats,
    counter,
    head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    SPLITS: tl.constexpr,
    PADDED: tl.constexpr,
):
    """After `store_part`: the program that arrives last combines GROUP heads from `head` on.

    Why that is right (PTX ISA, "Memory Consistency Model"): the block's barrier orders the stores
    of all its threads before one thread's atomic add, and release is cumulative, so the add
    (acq_rel, GPU scope) publishes them. The program that reads SPLITS - 1 has acquired every
    other's add, and through a second barrier so have its threads, which read the parts past L1. A
    test reads this order from the machine code. The counter goes back to 0 for the next launch.
    Sums run in the order of the splits, whoever is last: the last bits do not depend on who it is.
    """
    tl.debug_barrier()
    arrived = tl.atomic_add(counter, 1, sem="acq_rel")
    if arrived == SPLITS - 1:
        at = tl.arange(0, HEAD_DIM)
        for i in range(GROUP):
            row = combine(sums, stats, head + i, HEAD_DIM, SPLITS, PADDED)
            tl.store(out + (head + i) * HEAD_DIM + at, row.to(out.dtype.element_ty))
        tl.store(counter, 0)
