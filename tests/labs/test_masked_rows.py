"""The closed form of what a mask reads, held to counting column by column."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from labs.lab07b_static_cache.masked_rows import MaskedColumns, masked_columns

T_MAX = 24
LENGTHS = st.lists(st.tuples(st.integers(1, 12), st.integers(1, 12)), min_size=1, max_size=9)


def counted(requests: list[tuple[int, int]], batch: int, t_max: int) -> MaskedColumns:
    """Step by step, row by row, column by column."""
    tally = {"needed": 0, "beyond": 0, "ended": 0}
    waiting = list(requests)
    while waiting:
        rows, waiting = waiting[:batch], waiting[batch:]
        written = [1] * len(rows)  # by the prompts
        while any(w < new for w, (_, new) in zip(written, rows, strict=True)):
            for row, (prompt, new) in enumerate(rows):
                if written[row] >= new:
                    tally["ended"] += sum(1 for _ in range(t_max))
                    continue
                context = prompt + written[row]
                for column in range(t_max):
                    tally["needed" if column < context else "beyond"] += 1
                written[row] += 1
    return MaskedColumns(**tally)


@given(LENGTHS, st.integers(1, 5), st.integers(T_MAX, T_MAX + 5))
def test_the_closed_form_is_what_counting_gives(
    requests: list[tuple[int, int]], batch: int, t_max: int
) -> None:
    read = masked_columns(requests, batch, t_max)
    assert read == counted(requests, batch, t_max)
    assert read.total == read.needed + read.beyond + read.ended


@pytest.mark.parametrize(
    ("requests", "batch"), [([(1, 1)], 0), ([(0, 1)], 1), ([(1, 0)], 1), ([(1, 2), (8, 2)], 1)]
)
def test_what_no_row_can_hold_is_refused(requests: list[tuple[int, int]], batch: int) -> None:
    with pytest.raises(ValueError, match=r"batch 0|request [01]"):
        masked_columns(requests, batch, 9)
