"""cuda/inputs.py: one copy, fixed addresses, padding that is zero."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from mini_engine.cuda.inputs import StaticInputs  # noqa: E402
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits  # noqa: E402
from mini_engine.engine.scheduler import Scheduler  # noqa: E402
from mini_engine.engine.step_arrays import step_arrays  # noqa: E402

CPU = torch.device("cpu")
LIMITS = SchedulerLimits(
    max_num_seqs=4, max_num_batched_tokens=12, num_blocks=64, block_size=4, max_model_len=32
)


def batches(limits: SchedulerLimits, lengths: list[int]) -> list[ScheduledBatch]:
    """Every step that these prompts go through, three new tokens each."""
    scheduler = Scheduler(limits)
    for name, length in enumerate(lengths):
        scheduler.submit(Request(str(name), range(1, length + 1), 3))
    steps = []
    while batch := scheduler.step():
        steps.append(batch)
        # The arrays do not depend on which tokens come: any token will do.
        scheduler.update(batch, [9] * sum(entry.samples for entry in batch.entries))
    return steps


@given(
    lengths=st.lists(st.integers(1, 29), min_size=1, max_size=6),
    pads=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), min_size=40, max_size=40),
    max_tokens=st.sampled_from([12, 17]),
)
def test_every_step_is_what_the_host_says_and_zero_beyond(
    lengths: list[int], pads: list[tuple[int, int]], max_tokens: int
) -> None:
    """One set of buffers for all steps, so that what an earlier one left would be seen."""
    buffers = StaticInputs(LIMITS, max_tokens, CPU)
    for step in batches(LIMITS, lengths):
        expected = step_arrays(step, LIMITS)
        more_tokens, more_reqs = pads[step.num_tokens]
        num_tokens = min(step.num_tokens + more_tokens, max_tokens)
        num_reqs = min(step.num_reqs + more_reqs, LIMITS.max_num_seqs)
        filled = vars(buffers.fill(step, num_tokens, num_reqs))
        assert filled.keys() == expected.keys()
        for name, array in expected.items():
            per_token = name in ("input_ids", "positions", "slot_mapping")
            assert len(filled[name]) == (num_tokens if per_token else num_reqs)
            assert filled[name].dtype == torch.int32
            assert np.array_equal(filled[name][: len(array)], array), name
            assert not filled[name][len(array) :].any(), name


def test_addresses_never_change() -> None:
    buffers = StaticInputs(LIMITS, 12, CPU)
    first, *_, last = batches(LIMITS, [9, 3])
    pointers = {n: t.data_ptr() for n, t in vars(buffers.view(12, 4)).items()}
    for view in (
        buffers.fill(first, 12, 4),
        buffers.fill(last, last.num_tokens, last.num_reqs),
        buffers.view(1, 1),
    ):
        assert {n: t.data_ptr() for n, t in vars(view).items()} == pointers


@pytest.mark.parametrize("size", [(10, 4), (12, 1)])
def test_a_batch_that_is_larger_than_its_step_is_refused(size: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        StaticInputs(LIMITS, 12, CPU).fill(batches(LIMITS, [9, 3])[0], *size)
