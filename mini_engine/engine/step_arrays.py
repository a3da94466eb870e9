"""What a step reads: `StepInputs`, and its arrays on the host, made of a `ScheduledBatch`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mini_engine.engine.batch import ScheduledBatch, ScheduledRequest, SchedulerLimits
from mini_engine.engine.blocks import slot_of

A = TypeVar("A")  # an array on the host, or of either device


@dataclass(frozen=True, eq=False)
class StepInputs(Generic[A]):
    """T tokens of R requests, all int32. Zero is null in each: a padded row reads token 0 at
    position 0, and its slot is 0 of the null block (`blocks.py`)."""

    input_ids: A  # (T,) the tokens of all requests, one request after the other
    positions: A  # (T,) position of each token in its request
    slot_mapping: A  # (T,) cache slot for the token's K and V
    query_lens: A  # (R,) tokens of each request in this step
    context_lens: A  # (R,) tokens of its whole context, this step's included
    last_rows: A  # (R q,) rows of its last q tokens, to be sampled; without drafts q is 1
    block_table: A  # (R, max_blocks) its cache blocks, in order

    def rows(self, num_tokens: int, num_reqs: int) -> StepInputs[A]:
        """The first rows of each array, for a step of this size."""
        arrays: dict[str, Any] = vars(self)
        decode_query_len = len(arrays["last_rows"]) // len(arrays["query_lens"])
        sizes = step_shapes(num_tokens, num_reqs, 0, decode_query_len)
        return StepInputs(**{name: array[: sizes[name][0]] for name, array in arrays.items()})


def max_blocks(limits: SchedulerLimits) -> int:
    """Width of the block table: the blocks of the longest context."""
    return -(-limits.max_model_len // limits.block_size)


def step_shapes(
    num_tokens: int, num_reqs: int, blocks: int, decode_query_len: int = 1
) -> dict[str, tuple[int, ...]]:
    """The shape of each array for a step of this size. The block table comes last."""
    tokens, reqs, sampled = (num_tokens,), (num_reqs,), (num_reqs * decode_query_len,)
    return vars(StepInputs(tokens, tokens, tokens, reqs, reqs, sampled, (num_reqs, blocks)))


def step_arrays(batch: ScheduledBatch, limits: SchedulerLimits) -> dict[str, NDArray[np.int32]]:
    arrays = token_arrays(batch.entries, limits.block_size)
    arrays |= request_arrays(batch.entries, max_blocks(limits))
    arrays["last_rows"] = sampled_rows(batch.entries, limits.decode_query_len)
    return {name: np.asarray(array, np.int32) for name, array in arrays.items()}


def token_arrays(entries: Sequence[ScheduledRequest], block_size: int) -> dict[str, ArrayLike]:
    """The arrays with one number for each of T tokens: input_ids, positions, slot_mapping. Requests
    come one after the other, and the tokens of a request (`token_ids`) in order. They have the
    `query_len` positions from `start` on; those before are in the cache already. K and V of a
    position go to its slot (`slot_of`) in the request's block table."""
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    for entry in entries:
        own = range(entry.start, entry.context_len)
        tokens += entry.token_ids
        positions += own
        slots += [slot_of(entry.block_table, p, block_size) for p in own]
    return {"input_ids": tokens, "positions": positions, "slot_mapping": slots}


def sampled_rows(entries: Sequence[ScheduledRequest], decode_query_len: int) -> list[int]:
    """decode_query_len rows of each request: that of its last known token and those of its drafts.
    A request with fewer drafts repeats its last row."""
    ends = np.cumsum([entry.query_len for entry in entries]).tolist()
    return [
        min(end - max(entry.num_sampled, 1) + i, end - 1)
        for entry, end in zip(entries, ends, strict=True)
        for i in range(decode_query_len)
    ]


def request_arrays(entries: Sequence[ScheduledRequest], width: int) -> dict[str, ArrayLike]:
    """The arrays with a row for each of R requests: query_lens, context_lens, last_rows,
    block_table. context_lens counts the tokens that attention reads: those in the cache, this
    step's included. last_rows are rows among the step's T tokens. block_table is (R, width): the
    blocks of a request from the left, then zeros."""
    query_lens = [entry.query_len for entry in entries]
    table = np.zeros((len(entries), width), np.int32)
    for row, entry in enumerate(entries):
        table[row, : len(entry.block_table)] = entry.block_table
    return {
        "query_lens": query_lens,
        "context_lens": [entry.context_len for entry in entries],
        "last_rows": np.cumsum(query_lens) - 1,
        "block_table": table,
    }
