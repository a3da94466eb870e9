"""step_arrays.py: which token stands where, and where its K and V go."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.blocks import slot_of
from mini_engine.engine.scheduler import Scheduler
from mini_engine.engine.step_arrays import max_blocks, step_arrays, step_shapes


@given(
    prompts=st.lists(st.lists(st.integers(0, 99), min_size=1, max_size=20), min_size=1, max_size=5),
    block_size=st.integers(1, 6),
    budget=st.integers(1, 24),
)
def test_every_row_is_one_token_of_one_request(
    prompts: list[list[int]], block_size: int, budget: int
) -> None:
    """Through prefill chunks, decodes and preemptions, until all prompts have three tokens more."""
    longest = max(len(prompt) for prompt in prompts) + 2
    blocks = 1 + 2 * -(-longest // block_size)
    limits = SchedulerLimits(min(3, budget), budget, blocks, block_size, max_model_len=25)
    scheduler = Scheduler(limits)
    for name, prompt in enumerate(prompts):
        scheduler.submit(Request(str(name), prompt, 3))
    while batch := scheduler.step():
        arrays = step_arrays(batch, limits)
        shapes = step_shapes(batch.num_tokens, batch.num_reqs, max_blocks(limits))
        assert {name: array.shape for name, array in arrays.items()} == shapes
        assert all(array.dtype == np.int32 for array in arrays.values())
        row = 0
        for i, entry in enumerate(batch.entries):
            known = [*entry.request.prompt, *entry.state.output]
            assert tuple(arrays["block_table"][i, : len(entry.block_table)]) == entry.block_table
            assert not arrays["block_table"][i, len(entry.block_table) :].any()
            for position in range(entry.start, entry.context_len):
                assert arrays["positions"][row] == position
                assert arrays["input_ids"][row] == known[position]
                slot = slot_of(entry.block_table, position, block_size)
                assert arrays["slot_mapping"][row] == slot >= block_size  # never the null block
                row += 1
            assert arrays["last_rows"][i] == row - 1
            assert arrays["query_lens"][i] == entry.query_len
            assert arrays["context_lens"][i] == entry.context_len
        assert row == batch.num_tokens
        scheduler.update(batch, [7] * sum(entry.samples for entry in batch.entries))


@pytest.mark.parametrize(("context", "blocks"), [(32, 8), (33, 9), (1, 1)])
def test_the_block_table_is_as_wide_as_the_longest_context(context: int, blocks: int) -> None:
    assert max_blocks(SchedulerLimits(1, 1, 10, 4, max_model_len=context)) == blocks
