"""From partial argmaxes to greedy tokens on the device, and the metadata of the next step.

    pick_tokens:       partials (M, P) -> tokens (M,)
    pick_and_advance:  the same, and everything that the next step reads, so it can follow at once

In:  the partials that head.py leaves: the best score (float32) of each of P programs, and its index
     in the vocabulary (int32). Out: tokens (M,) int32 or int64; of equal scores, the lowest index
     wins. Tokens and metadata stay on the device, so k decode steps fit in one graph.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton

PICK_BLOCK = 1024  # partials read at a time


@triton.jit
def best_of(scores, index, inside):
    """(largest score, lowest index that has it). NaN never wins; without a number: (-inf, 0)."""
    scores = tl.where(inside & (scores == scores), scores, float("-inf"))
    value = tl.max(scores, axis=0)
    found = tl.min(tl.where(scores == value, index, 2147483647), axis=0)
    return value, tl.where(value > float("-inf"), found, 0)


@triton.jit
def pick_kernel(
    tokens, values, indices, input_ids, positions, context_lens, slot_mapping, block_table,
    table_stride, end, PARTIALS: tl.constexpr, BLOCK: tl.constexpr, BLOCK_SIZE: tl.constexpr,
    ADVANCE: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program row: the best of its PARTIALS partials; with ADVANCE the next step's metadata."""
    pdl_release(PDL)
    pdl_wait(PDL)
    row = tl.program_id(0)
    values += row * PARTIALS
    indices += row * PARTIALS
    # A best for each lane first, over all reads, then one reduction across lanes.
    best = tl.full((BLOCK,), float("-inf"), tl.float32)
    winner = tl.zeros((BLOCK,), tl.int32)
    for start in range(0, PARTIALS, BLOCK):
        partial = start + tl.arange(0, BLOCK)
        inside = partial < PARTIALS
        value = tl.load(values + partial, mask=inside, other=float("-inf"), cache_modifier=".cg")
        index = tl.load(indices + partial, mask=inside, other=0, cache_modifier=".cg")
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


@torch.library.custom_op("launch_bound::pick_tokens", mutates_args=("tokens",))
def pick_tokens(tokens: Tensor, values: Tensor, indices: Tensor, pdl: bool = False) -> None:
    """tokens (M,) of the partials values and indices (M, P)."""
    check_shape("tokens", tokens, (len(values),))
    if not runs_triton(values):
        tokens.copy_(pick_reference(values, indices))
        return
    pick_kernel[(len(tokens),)](
        tokens, values, indices, None, None, None, None, None, table_stride=0, end=0,
        PARTIALS=values.shape[1], BLOCK=PICK_BLOCK, BLOCK_SIZE=1, ADVANCE=False,
        num_warps=4, **launch_options(pdl, values.device),
    )  # fmt: skip


@torch.library.custom_op(
    "launch_bound::pick_and_advance",
    mutates_args=("tokens", "input_ids", "positions", "context_lens", "slot_mapping"),
)
def pick_and_advance(
    tokens: Tensor, input_ids: Tensor, positions: Tensor, context_lens: Tensor,
    slot_mapping: Tensor, values: Tensor, indices: Tensor, block_table: Tensor, block_size: int,
    end: int, pdl: bool = False,
) -> None:  # fmt: skip
    """`pick_tokens`, and each row moves on as `Model.advance` says: input_ids, positions,
    context_lens and slot_mapping (M,) int32, the slot by block_table (M, max_blocks)."""
    check_shape("tokens", tokens, (len(values),))
    if not runs_triton(values):
        tokens.copy_(pick_reference(values, indices))
        live, context = context_lens > 0, context_lens.long()
        input_ids.copy_(torch.where(live, tokens, input_ids))
        place = context.clamp(max=end - 1)
        block = block_table.gather(1, (place // block_size * live).unsqueeze(1)).squeeze(1)
        slot_mapping.copy_(torch.where(live, block * block_size + place % block_size, slot_mapping))
        positions.copy_(torch.where(live, place, positions))
        context_lens.copy_(torch.where(live, (context + 1).clamp(max=end), context))
        return
    pick_kernel[(len(tokens),)](
        tokens, values, indices, input_ids, positions, context_lens, slot_mapping, block_table,
        table_stride=block_table.stride(0), end=end,
        PARTIALS=values.shape[1], BLOCK=PICK_BLOCK, BLOCK_SIZE=block_size, ADVANCE=True,
        num_warps=4, **launch_options(pdl, values.device),
    )  # fmt: skip


def pick_reference(values: Tensor, indices: Tensor) -> Tensor:
    """The lowest index of a row's largest value."""
    largest = values == values.amax(dim=-1, keepdim=True)
    return torch.where(largest, indices.long(), 2**31).amin(dim=-1)
