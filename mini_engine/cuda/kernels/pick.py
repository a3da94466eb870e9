"""From scores to tokens without leaving the device, and the metadata of the step after.

    top_of_logits:     logits (M, V) -> partials: the best value and its index of each piece
    pick_tokens:       partials (M, P) -> tokens (M,)
    pick_and_advance:  the same, then all that the next step reads, so that it can follow at once

In:  logits in float32 or bf16, or the partials that head.py leaves: values float32, indices int32.
Out: tokens (M,) int32 or int64, of equal scores the lowest index. With the token and the metadata
     on the device, k decode steps fit one graph.

Two kernels because every piece of the vocabulary must be done before the best is known. Bytes: the
logits once; the partials are P = V / 4096 pairs of 8 bytes a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.launch import (
    check_shape,
    launch_options,
    pdl_release,
    pdl_wait,
    runs_triton,
)
from mini_engine.cuda.kernels.paged import check_table
from mini_engine.cuda.kernels.sampling import best_of, check_sampling, noisy, sampling_reference

LOGITS_BLOCK = 4096  # logits that leave one partial
PICK_BLOCK = 1024  # partials read at a time


@triton.jit
def logits_kernel(
    values,
    indices,
    logits,
    temperatures,
    seeds,
    positions,
    V: tl.constexpr,
    BLOCK: tl.constexpr,
    SAMPLE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row and BLOCK logits."""
    pdl_release(PDL)
    pdl_wait(PDL)
    row = tl.program_id(0)
    index = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = logits + row.to(tl.int64) * V + index
    scores = tl.load(at, mask=index < V, other=float("-inf"), cache_modifier=".cg").to(tl.float32)
    if SAMPLE:
        warmth, seed = (
            tl.load(temperatures + row, cache_modifier=".cg"),
            tl.load(seeds + row, cache_modifier=".cg"),
        )
        scores = noisy(
            scores, index, warmth, seed, tl.load(positions + row, cache_modifier=".cg").to(tl.int32)
        )
    value, found = best_of(scores, index, index < V)
    part = row * tl.num_programs(1) + tl.program_id(1)
    tl.store(values + part, value)
    tl.store(indices + part, found)


@triton.jit
def pick_kernel(
    tokens,
    values,
    indices,
    input_ids,
    positions,
    context_lens,
    slot_mapping,
    block_table,
    table_stride,
    end,
    PARTS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    ADVANCE: tl.constexpr,
    PDL: tl.constexpr,
):
    """One program a row: the best of its PARTS partials; with ADVANCE the next step's metadata."""
    pdl_release(PDL)
    pdl_wait(PDL)
    row = tl.program_id(0)
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, PARTS, BLOCK):
        part = start + tl.arange(0, BLOCK)
        inside = part < PARTS
        value = tl.load(
            values + row * PARTS + part, mask=inside, other=float("-inf"), cache_modifier=".cg"
        )
        index = tl.load(indices + row * PARTS + part, mask=inside, other=0, cache_modifier=".cg")
        better = (value > best) | ((value == best) & (index < winner))
        best = tl.where(better, value, best)
        winner = tl.where(better, index, winner)
    _, token = best_of(best, winner, best == best)
    tl.store(tokens + row, token.to(tokens.dtype.element_ty))
    if ADVANCE:
        context = tl.load(context_lens + row, cache_modifier=".cg")
        if context > 0:  # a padded row stays a padded row
            place = tl.minimum(context, end - 1)
            block = tl.load(block_table + row * table_stride + place // BLOCK_SIZE)
            tl.store(input_ids + row, token)
            tl.store(slot_mapping + row, block * BLOCK_SIZE + place % BLOCK_SIZE)
            tl.store(positions + row, place)
            tl.store(context_lens + row, tl.minimum(context + 1, end))


# ---------------------------------------------------------------- what the model calls


@torch.library.custom_op("launch_bound::top_of_logits", mutates_args=("values", "indices"))
def top_of_logits(
    values: Tensor,
    indices: Tensor,
    logits: Tensor,
    temperatures: Tensor | None = None,
    seeds: Tensor | None = None,
    positions: Tensor | None = None,
    pdl: bool = False,
) -> None:
    """Partials of logits (M, V): values and indices (M, `num_parts(V)`).

    temperatures (M,) float32, seeds (M,) int64, positions (M,) int32: all three to sample, none for
    greedy. Raises ValueError on misfits and refused PDL.
    """
    rows, vocab = logits.shape
    parts = num_parts(vocab)
    sample = check_sampling(rows, temperatures, seeds, positions)
    check_shape("logits", logits, (rows, vocab))
    check_shape("values", values, (rows, parts))
    check_shape("indices", indices, (rows, parts))
    if not runs_triton(logits):
        fill_parts(values, indices, sampling_reference(logits, temperatures, seeds, positions))
        return
    options = launch_options(pdl, logits)
    logits_kernel[(rows, parts)](
        *(values, indices, logits, temperatures, seeds, positions),
        *(vocab, LOGITS_BLOCK, sample, pdl),
        num_warps=4,
        **options,
    )


@torch.library.custom_op("launch_bound::pick_tokens", mutates_args=("tokens",))
def pick_tokens(tokens: Tensor, values: Tensor, indices: Tensor, pdl: bool = False) -> None:
    """tokens (M,) of partials (M, P). Raises ValueError on misfits and refused PDL."""
    _check_parts(tokens, values, indices)
    if not runs_triton(values):
        tokens.copy_(pick_reference(values, indices))
        return
    options = launch_options(pdl, values)
    pick_kernel[(len(tokens),)](
        *(tokens, values, indices, None, None, None, None, None, 0, 0),
        *(values.shape[1], PICK_BLOCK, 1, False, pdl),
        num_warps=4,
        **options,
    )


@torch.library.custom_op(
    "launch_bound::pick_and_advance",
    mutates_args=("tokens", "input_ids", "positions", "context_lens", "slot_mapping"),
)
def pick_and_advance(
    tokens: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    values: Tensor,
    indices: Tensor,
    block_table: Tensor,
    block_size: int,
    end: int,
    pdl: bool = False,
) -> None:
    """`pick_tokens`, and each row moves on by the token it got: the token is its next input, its
    position becomes the old context length, the context grows by one, the slot is looked up in
    block_table (M, max_blocks). A padded row (context_len 0) stays as it is, and a row that has
    come to `end`, the longest context there is room for, stays there.

    All but tokens, values and indices are the (M,) int32 inputs of the step. Raises ValueError on
    misfits, on an `end` that the table has no blocks for, and on refused PDL.
    """
    _check_parts(tokens, values, indices)
    step = {"input_ids": input_ids, "positions": positions, "slot_mapping": slot_mapping}
    for name, vector in (step | {"context_lens": context_lens}).items():
        check_shape(name, vector, (len(tokens),))
    check_table(block_table, len(tokens))
    if not 0 < end <= block_table.shape[1] * block_size:
        raise ValueError(
            f"end is {end}, expected 1 to {block_table.shape[1] * block_size}: "
            f"{block_table.shape[1]} blocks of {block_size}"
        )
    if not runs_triton(values):
        tokens.copy_(pick_reference(values, indices))
        input_ids.copy_(torch.where(context_lens > 0, tokens, input_ids))
        advance_reference(positions, context_lens, slot_mapping, block_table, block_size, end)
        return
    options = launch_options(pdl, values)
    pick_kernel[(len(tokens),)](
        *(tokens, values, indices, input_ids, positions, context_lens, slot_mapping, block_table),
        *(block_table.stride(0), end, values.shape[1], PICK_BLOCK, block_size, True, pdl),
        num_warps=4,
        **options,
    )


def num_parts(vocab_size: int) -> int:
    """Partials a row that `top_of_logits` leaves."""
    return -(-vocab_size // LOGITS_BLOCK)


def bytes_moved(num_rows: int, num_partials: int) -> int:
    """Of `pick_tokens`: the partials, a float32 and an int32 each."""
    return num_rows * num_partials * 8


# ---------------------------------------------------------------- the same in PyTorch


def fill_parts(values: Tensor, indices: Tensor, scores: Tensor) -> None:
    """All of a row's scores as its first partial; the others lose against anything."""
    values.fill_(-torch.inf)
    indices.zero_()
    number = scores.nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    values[:, 0], indices[:, 0] = number.amax(dim=-1), number.argmax(dim=-1).int()


def pick_reference(values: Tensor, indices: Tensor) -> Tensor:
    """Of the largest values of a row the lowest index."""
    largest = values == values.amax(dim=-1, keepdim=True)
    return torch.where(largest, indices.long(), 2**31).amin(dim=-1)


def advance_reference(
    positions: Tensor,
    context_lens: Tensor,
    slot_mapping: Tensor,
    block_table: Tensor,
    block_size: int,
    end: int,
) -> None:
    """The metadata of the next step, in place."""
    live = context_lens > 0
    context = context_lens.long()
    place = context.clamp(max=end - 1)
    block = block_table.gather(1, (place // block_size * live).unsqueeze(1)).squeeze(1)
    slot_mapping.copy_(torch.where(live, block * block_size + place % block_size, slot_mapping))
    positions.copy_(torch.where(live, place, positions))
    context_lens.copy_(torch.where(live, (context + 1).clamp(max=end), context))


def _check_parts(tokens: Tensor, values: Tensor, indices: Tensor) -> None:
    if values.dim() != 2:
        raise ValueError(f"values is {tuple(values.shape)}, expected (num_reqs, partials)")
    check_shape("values", values, tuple(values.shape))
    check_shape("indices", indices, tuple(values.shape))
    check_shape("tokens", tokens, (values.shape[0],))
