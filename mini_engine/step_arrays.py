"""What a step reads, on the host: the integers that tell a model which token stands where.

In:  a `ScheduledBatch`. Out: `step_arrays`, int32, by the names that `StepInputs` has in each wing.

    input_ids      (T,)  the tokens of all requests, one request after the other
    positions      (T,)  place of each token in its request
    slot_mapping   (T,)  cache slot that takes the token's K and V; slot 0 is nobody's
    query_lens     (R,)  tokens of each request in this step
    context_lens   (R,)  tokens of its whole context, this step's included
    last_rows      (R,)  row of its last token, whose logits are sampled
    block_table    (R, max_blocks)  its cache blocks, in order

Zero is the null of each: a padded row reads token 0 at position 0 and writes to slot 0.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mini_engine.blocks import slot_of
from mini_engine.scheduler import ScheduledBatch, SchedulerLimits


def max_blocks(limits: SchedulerLimits) -> int:
    """Width of the block table: blocks of the longest context."""
    return -(-limits.max_model_len // limits.block_size)


def step_shapes(num_tokens: int, num_reqs: int, blocks: int) -> dict[str, tuple[int, ...]]:
    """The shape of each array, for steps of up to this size. The block table comes last."""
    per_token, per_request = (num_tokens,), (num_reqs,)
    return {
        "input_ids": per_token,
        "positions": per_token,
        "slot_mapping": per_token,
        "query_lens": per_request,
        "context_lens": per_request,
        "last_rows": per_request,
        "block_table": (num_reqs, blocks),
    }


def step_arrays(batch: ScheduledBatch, limits: SchedulerLimits) -> dict[str, NDArray[np.int32]]:
    """T tokens of R requests, nothing padded."""
    entries = batch.entries
    table = np.zeros((len(entries), max_blocks(limits)), np.int32)
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for row, entry in enumerate(entries):
        table[row, : len(entry.block_table)] = entry.block_table
        tokens += entry.token_ids
        own = range(entry.start, entry.context_len)
        positions += own
        slots += [slot_of(entry.block_table, p, limits.block_size) for p in own]
    arrays = {
        "input_ids": tokens,
        "positions": positions,
        "slot_mapping": slots,
        "query_lens": batch.query_lens,
        "context_lens": batch.context_lens,
        "last_rows": np.cumsum(batch.query_lens) - 1,
    }
    return {name: np.asarray(a, np.int32) for name, a in arrays.items()} | {"block_table": table}
