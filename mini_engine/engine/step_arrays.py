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

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mini_engine.engine.blocks import slot_of
from mini_engine.engine.scheduler import ScheduledBatch, ScheduledRequest, SchedulerLimits


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
    of_tokens = token_arrays(batch.entries, limits.block_size)
    of_requests = request_arrays(batch.entries, max_blocks(limits))
    return {name: np.asarray(a, np.int32) for name, a in {**of_tokens, **of_requests}.items()}


def token_arrays(entries: Sequence[ScheduledRequest], block_size: int) -> dict[str, ArrayLike]:
    """What is said of each token, T of them: input_ids, positions, slot_mapping.

    Request after request; in a request, its tokens of this step in order. They are `query_len`
    tokens (`token_ids`) at the positions from `start` on, since those before `start` are in the
    cache already, and position p's K and V belong into the slot that the request's block table
    says (`slot_of`).
    """
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for entry in entries:
        own = range(entry.start, entry.context_len)
        tokens += entry.token_ids
        positions += own
        slots += [slot_of(entry.block_table, p, block_size) for p in own]
    return {"input_ids": tokens, "positions": positions, "slot_mapping": slots}


def request_arrays(entries: Sequence[ScheduledRequest], width: int) -> dict[str, ArrayLike]:
    """What is said of each request, R of them: query_lens, context_lens, last_rows, block_table.

    context_lens counts the tokens in the cache once this step has written its own: attention reads
    them all. last_rows are rows of the step's T tokens. block_table is (R, width): a request's
    blocks from the left, zeros behind them.
    """
    query_lens = [entry.query_len for entry in entries]
    table = np.zeros((len(entries), width), np.int32)
    for row, entry in zip(table, entries, strict=True):
        row[: len(entry.block_table)] = entry.block_table
    return {
        "query_lens": query_lens,
        "context_lens": [entry.start + entry.query_len for entry in entries],
        "last_rows": np.cumsum(query_lens) - 1,
        "block_table": table,
    }
