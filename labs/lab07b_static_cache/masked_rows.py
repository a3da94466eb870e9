"""What a cache without pages costs: K and V that a mask makes a step read, and drops.

In:  requests as (prompt tokens, output tokens), in order; B, how many share a batch; T_max.
Out: `MaskedColumns`: how many columns of the cache all decode steps read, and what for.

    read = masked_columns([(1652, 263), (314, 153)], batch=2, t_max=4096)
    read.needed / read.total, read.total * stored_as(config).kv_bytes_per_token

A column is K and V of one token of one row. A batch starts together and ends with its longest
answer, and each of its decode steps reads all columns of all its rows
(`labs/lab07b_static_cache/static_engine.py`). An engine with pages reads those that are `needed`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

Lengths = tuple[int, int]  # tokens of the prompt, tokens of the answer


@dataclass(frozen=True)
class MaskedColumns:
    """Columns that decode steps read, summed over steps, by what they are read for."""

    needed: int  # tokens of a text that goes on
    beyond: int  # in the same rows, behind the text
    ended: int  # rows whose text has ended, and that wait for the longest

    @property
    def total(self) -> int:
        return self.needed + self.beyond + self.ended

    def __add__(self, other: MaskedColumns) -> MaskedColumns:
        return MaskedColumns(
            self.needed + other.needed, self.beyond + other.beyond, self.ended + other.ended
        )


def masked_columns(requests: Iterable[Lengths], batch: int, t_max: int) -> MaskedColumns:
    """All batches of the requests, taken B at a time as they come.

    Raises ValueError for a batch below 1 and for a request that a row cannot hold.
    """
    if batch < 1:
        raise ValueError(f"batch {batch}: expected 1 or more")
    read, coming, first = MaskedColumns(0, 0, 0), iter(requests), 0
    while together := list(islice(coming, batch)):
        for number, (prompt, output) in enumerate(together, start=first):
            if prompt < 1 or output < 1 or prompt + output > t_max:
                raise ValueError(
                    f"request {number}: a prompt of {prompt} and {output} new tokens: expected 1 "
                    f"of each or more, and T_max {t_max} at most together: leave it out, or raise "
                    "T_max"
                )
        read += columns_of_batch(together, t_max)
        first += len(together)
    return read


def columns_of_batch(requests: Sequence[Lengths], t_max: int) -> MaskedColumns:
    """What the decode steps of one batch read.

    The prompt gives the first token of an answer of n, so the request decodes n - 1 times, over
    p + 1, p + 2, … p + n - 1 columns; the batch goes on as long as its longest answer. Columns are
    computed and not counted one by one: a larger T_max takes no longer.
    """
    steps = max(output for _, output in requests) - 1
    live = sum(output - 1 for _, output in requests)  # rows that go on, summed over steps
    needed = sum((n - 1) * p + n * (n - 1) // 2 for p, n in requests)
    return MaskedColumns(
        needed=needed, beyond=live * t_max - needed, ended=(steps * len(requests) - live) * t_max
    )
