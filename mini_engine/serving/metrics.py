"""Percentiles of latencies, exact or of a stream.

In: times. Out: percentiles, by one definition.

**Percentile** means nearest rank everywhere: the p-th percentile of n values is the smallest
value that at least p% of them do not exceed, the ceil(p/100 * n)-th in order. It is always a
value that occurred, and it needs no interpolation rule
(Hyndman & Fan 1996, "Sample Quantiles in Statistical Packages", definition 1).

`percentile` sorts values in memory. `LogHistogram` serves streams too long to keep: its bins are
0.5% wide, so its percentiles are within 0.25% of the exact ones.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import accumulate


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile. Raises ValueError when there are no values."""
    ordered = sorted(values)
    return ordered[_rank(len(ordered), percent) - 1]


GROWTH = 1.005  # ratio of a bin's edges
LOWEST, HIGHEST = 1e-3, 1e12  # in us: a nanosecond to eleven days
_NUM_BINS = math.ceil(math.log(HIGHEST / LOWEST, GROWTH))
_EDGES = tuple(LOWEST * GROWTH**i for i in range(_NUM_BINS + 1))


@dataclass
class LogHistogram:
    """Counts of positive values in bins of constant ratio: fixed memory for any stream.

    Bin i holds _EDGES[i-1] <= value < _EDGES[i], _EDGES[i] = LOWEST * GROWTH**i; the first and the
    last bin hold the values outside [LOWEST, HIGHEST). Count, min and max are exact. A value of
    whole-numbered weight w counts as w equal values.
    """

    count: int = 0
    min: float = math.inf
    max: float = -math.inf
    _counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))

    def add(self, value: float, weight: int = 1) -> None:
        self._counts[bisect_right(_EDGES, value)] += weight
        self._book(weight, value, value)

    def add_ramp(self, first: float, step: float, terms: int, weight: int = 1) -> None:
        """Add first, first + step, …, first + (terms - 1) * step, each `weight` times.

        The bins are the same as adding one term after the other gives, but the work is one
        division for each bin. `step`: 0 or more. `terms`: 1 or more.
        """
        last = first + (terms - 1) * step
        last_bin = bisect_right(_EDGES, last)
        done = 0
        for i in range(bisect_right(_EDGES, first), last_bin):
            below = _terms_below(_EDGES[i], first, step)
            self._counts[i] += (below - done) * weight
            done = below
        self._counts[last_bin] += (terms - done) * weight
        self._book(terms * weight, first, last)

    def percentile(self, percent: float) -> float:
        """Nearest-rank percentile, within 0.25%. Raises ValueError while empty."""
        rank = _rank(self.count, percent)
        i = bisect_left(list(accumulate(self._counts)), rank)
        if i == 0:
            return self.min
        if i == len(_EDGES):
            return self.max
        middle = math.sqrt(_EDGES[i - 1] * _EDGES[i])
        return min(max(middle, self.min), self.max)

    def _book(self, count: int, low: float, high: float) -> None:
        self.count += count
        self.min = low if low < self.min else self.min  # min() would be slower
        self.max = high if high > self.max else self.max


def _rank(count: int, percent: float) -> int:
    if count == 0:
        raise ValueError("no values, so no percentile: count something first")
    if not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent}: give a number from 0 to 100")
    return max(1, math.ceil(percent * count / 100))


def _terms_below(edge: float, first: float, step: float) -> int:
    """Number of terms of the ramp below the edge, by floating-point comparison."""
    n = math.ceil((edge - first) / step)
    # Quotient and terms are rounded: check the terms on both sides of the edge.
    while first + (n - 1) * step >= edge:
        n -= 1
    while first + n * step < edge:
        n += 1
    return n
