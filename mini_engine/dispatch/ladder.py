"""Which batch sizes to capture, and what a batch between two of them wastes.

A graph replays only the shapes it was captured with. So an engine captures a *ladder* of sizes, in
tokens, and pads each batch to the next *rung*, the smallest size that holds it. A batch has a *row*
for each token; padding adds rows.

    ladder = CaptureLadder(default_capture_sizes(256, 8192))   # vLLM's: 1, 2, 4, 8, 16, 24 … 512
    ladder.rung(33), ladder.waste({33: 100}).padded_rows       # 40, 700
    optimal_ladder({33: 100, 1: 7}, rungs=2)                   # rungs 1 and 33"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

PerRung = Callable[[int], float]  # the cost of a step at a rung, for example in µs


class CaptureLadder(tuple[int, ...]):
    """A tuple of capture sizes, at least one, rising, that knows which rung a batch runs at.
    Raises ValueError, naming the size, for any other."""

    __slots__ = ()

    def __new__(cls, sizes: Iterable[int]) -> CaptureLadder:
        ladder = super().__new__(cls, sizes)
        if not ladder:
            raise ValueError("a ladder needs at least one rung: give the sizes to capture")
        for below, size in pairwise((0, *ladder)):
            if size <= below:
                raise ValueError(f"rung {size} after {below}: give sizes from 1 up, rising")
        return ladder

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self)

    @property
    def top(self) -> int:
        return self[-1]

    def rung(self, n: int) -> int | None:
        """The size that a batch of `n` rows is padded to. None above the top: it runs eagerly. 0
        for 0 rows: a step without work runs nothing. Raises ValueError for a negative `n`."""
        if n < 0:
            raise ValueError(f"batch of {n} rows: a batch has 0 rows or more")
        if n == 0:
            return 0
        at = bisect_left(self, n)
        return self[at] if at < len(self) else None

    def waste(self, histogram: Mapping[int, int]) -> Waste:
        """What padding costs for `histogram`: rows in a batch -> number of such steps. A batch
        above the top runs eagerly and unpadded: its rows count as real and as eager. Steps of 0
        rows run nothing. Raises ValueError for a negative entry (`_checked_histogram`)."""
        real = padded = eager_rows = eager_steps = 0
        for rows, steps in _checked_histogram(histogram).items():
            rung = self.rung(rows)
            real += rows * steps
            if rung is None:
                eager_rows += rows * steps
                eager_steps += steps
            else:
                padded += (rung - rows) * steps
        return Waste(padded, real, eager_rows, eager_steps)

    def explain(self, n: int) -> str:
        """One sentence for "why does my batch of `n` run at this size?"."""
        rung = self.rung(n)
        if n == 0:
            return "A batch of 0 rows has nothing to run: no graph is replayed."
        if rung is None:
            return (
                f"A batch of {n} runs eagerly and unpadded: it is above the top rung {self.top}. "
                f"Add {n} to the capture sizes if it should run in a graph."
            )
        if rung == n:
            return f"A batch of {n} runs at {n}, unpadded: a graph was captured for this very size."
        below = max((size for size in self if size < n), default=0)
        gap = f"the next rung down is {below}" if below else "there is no smaller rung"
        return (
            f"A batch of {n} runs at {rung}: a graph replays only the size it was captured with, "
            f"{gap}, so {rung - n} of the {rung} rows ({(rung - n) / rung:.0%}) are padding."
        )


@dataclass(frozen=True)
class Waste:
    """The rows of a workload on a ladder, summed over its steps."""

    padded_rows: int  # added to reach a rung
    real_rows: int  # asked for
    eager_rows: int  # those of real_rows in batches above the top
    eager_steps: int  # batches above the top

    @property
    def wasted_fraction(self) -> float:
        """Share of padding in the rows that the GPU computed, in graphs and eagerly. 0.0 if it
        computed none."""
        computed = self.real_rows + self.padded_rows
        return self.padded_rows / computed if computed else 0.0


def optimal_ladder(
    histogram: Mapping[int, int], rungs: int, *, cost: PerRung = float, top: int | None = None
) -> CaptureLadder:
    """The ladder of at most `rungs` rungs on which the steps of `histogram` cost least. Exact.
    `histogram`: rows in a batch -> number of such steps. `cost(rung)`: of one step at that rung,
    for example in µs; any function, rising or not. By default it is the rung, which gives the
    fewest padded rows. `top`: the last rung, by default the largest batch in the histogram; larger
    batches run eagerly and are left out. Of equally good ladders, the one with the fewest rungs.
    Raises ValueError for `rungs` or `top` below 1 and for an empty histogram without a `top`."""
    return best_ladders(histogram, rungs, cost=cost, top=top)[-1]


def best_ladders(
    histogram: Mapping[int, int], max_rungs: int, *, cost: PerRung = float, top: int | None = None
) -> list[CaptureLadder]:
    """The best ladders of 1, 2 … `max_rungs` rungs, without those whose last rung saves nothing.
    Arguments and errors are those of `optimal_ladder`."""
    ran = _checked_histogram(histogram)
    if max_rungs < 1:
        raise ValueError(f"a ladder of {max_rungs} rungs: give 1 or more")
    if not ran and top is None:
        raise ValueError("the histogram has no steps: give batch sizes that ran, or a top")
    top = max(ran) if top is None else top
    if top < 1:
        raise ValueError(f"top rung {top}: give 1 or more")
    # of all rungs that serve the same batches, the cheapest
    spans = (
        range(size, end) for size, end in pairwise([*(rows for rows in ran if rows < top), top])
    )
    candidates = sorted({min(span, key=cost) for span in spans} | {top})
    price = [float(cost(rung)) for rung in candidates]
    steps = [0] * len(candidates)
    for rows, count in ran.items():
        if rows <= top:
            steps[bisect_left(candidates, rows)] += count
    found = cheapest_rungs(candidates, price, steps, max_rungs)
    return [CaptureLadder(rungs) for rungs in dict.fromkeys(found)]


def cheapest_rungs(
    candidates: Sequence[int], price: Sequence[float], steps: Sequence[int], rungs: int
) -> list[tuple[int, ...]]:
    """The cheapest choice of at most 1, 2 … `rungs` of the candidates, each a rising tuple.

    `candidates`: sizes, rising; the last one is always chosen. `steps[i]`: number of steps that
    fit candidate i but not candidate i - 1. `price[i]`: cost of one step at candidate i, in any
    unit, rising or not. A step runs at the smallest chosen candidate that it fits. Of equally cheap
    choices, one with the fewest rungs. With fewer candidates than `rungs`, the list ends early.

    Let least[j][i] be the least cost of all steps that fit candidate i, if it is rung number j.
    If rung j - 1 is candidate p, then i serves the steps between them:
        least[j][i] = min over p < i of least[j - 1][p] + price[i] * (steps after p, up to i)"""
    upto = np.cumsum([0, *steps])  # with candidate 0 in front: "no rung yet"
    least = np.full(len(candidates) + 1, np.inf)
    least[0] = 0.0
    choices: list[list[int]] = []  # for each number of rungs: the p that was best for each i
    best, found = np.inf, list[tuple[int, ...]]()
    for _ in range(min(rungs, len(candidates))):  # one more rung each time
        before, least = least, np.full(len(candidates) + 1, np.inf)
        choices.append([0] * (len(candidates) + 1))
        for i in range(1, len(candidates) + 1):
            ways = before[:i] + price[i - 1] * (upto[i] - upto[:i])
            choices[-1][i] = int(ways.argmin())
            least[i] = ways.min()
        better = least[-1] < best
        best = min(best, least[-1])
        found.append(_walk_back(choices, candidates) if better else found[-1])
    return found


def _walk_back(choices: list[list[int]], candidates: Sequence[int]) -> tuple[int, ...]:
    at, rungs = len(candidates), []
    for choice in reversed(choices):
        rungs.append(candidates[at - 1])
        at = choice[at]
    return tuple(reversed(rungs))


def _checked_histogram(histogram: Mapping[int, int]) -> dict[int, int]:
    """`histogram` in order of batch size, without empty batches and those that never ran.
    Raises ValueError for a negative number."""
    for rows, steps in histogram.items():
        if rows < 0 or steps < 0:
            raise ValueError(f"histogram entry {rows}: {steps}: rows and steps must be 0 or more")
    return {rows: steps for rows, steps in sorted(histogram.items()) if rows and steps}
