"""What a user and an operator feel: TTFT, ITL, throughput, utilisation, padding waste.

In:  times and counts.
Out: numbers, each with one definition, used by the engine, the simulator and the bench alike.

**Percentile** means nearest rank everywhere: the p-th percentile of n values is the smallest
value that at least p% of them do not exceed, the ceil(p/100 * n)-th in order. It is always a
value that occurred, and it needs no interpolation rule
(Hyndman & Fan 1996, "Sample Quantiles in Statistical Packages", definition 1).

`percentile` sorts values that are at hand. `LogHistogram` answers the same question about a
stream too long to keep: its bins are 0.5% wide, so a percentile is within 0.25% of the exact one.
"""

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile. Raises ValueError when there are no values."""
    ordered = sorted(values)
    return ordered[_rank(len(ordered), percent) - 1]


def utilisation(busy_us: float, elapsed_us: float) -> float:
    """Share of the elapsed time that a device was busy; 0 when no time has passed."""
    return busy_us / elapsed_us if elapsed_us > 0 else 0.0


def padding_waste(real_tokens: int, computed_tokens: int) -> float:
    """Share of the computed rows that were padding; 0 when nothing was computed."""
    return (computed_tokens - real_tokens) / computed_tokens if computed_tokens else 0.0


class TimedTokens(Protocol):
    """A finished request, as far as its times go (`engine.Completion` is one)."""

    @property
    def arrival_us(self) -> float: ...
    @property
    def token_times_us(self) -> tuple[float, ...]: ...
    @property
    def ttft_us(self) -> float: ...
    @property
    def itls_us(self) -> tuple[float, ...]: ...


@dataclass(frozen=True)
class LatencySummary:
    """Latencies in us, rates per second over the time from first arrival to last token."""

    requests: int
    tokens: int
    ttft_p50_us: float
    ttft_p99_us: float
    itl_p50_us: float | None  # None when no request had a second token
    itl_p99_us: float | None
    tokens_per_s: float
    requests_per_s: float


def summarize(completions: Sequence[TimedTokens]) -> LatencySummary:
    """Exact summary of requests at hand. Raises ValueError when there are none."""
    ttfts = [c.ttft_us for c in completions]
    itls = [itl for c in completions for itl in c.itls_us]
    tokens = sum(len(c.token_times_us) for c in completions)
    ttft_p50_us = percentile(ttfts, 50)
    began_us = min(c.arrival_us for c in completions)
    seconds = (max(c.token_times_us[-1] for c in completions) - began_us) / 1e6
    return LatencySummary(
        requests=len(completions),
        tokens=tokens,
        ttft_p50_us=ttft_p50_us,
        ttft_p99_us=percentile(ttfts, 99),
        itl_p50_us=percentile(itls, 50) if itls else None,
        itl_p99_us=percentile(itls, 99) if itls else None,
        tokens_per_s=tokens / seconds,
        requests_per_s=len(completions) / seconds,
    )


GROWTH = 1.005  # ratio of a bin's edges
LOWEST, HIGHEST = 1e-3, 1e12  # in us: a nanosecond to eleven days
_NUM_BINS = math.ceil(math.log(HIGHEST / LOWEST, GROWTH))
_EDGES = tuple(LOWEST * GROWTH**i for i in range(_NUM_BINS + 1))


class LogHistogram:
    """Counts of positive values in bins of constant ratio: fixed memory for any stream.

    Bin i holds _EDGES[i-1] <= value < _EDGES[i], _EDGES[i] = LOWEST * GROWTH**i; values outside
    [LOWEST, HIGHEST) share one bin at either end. Count, total, min and max are exact (total to
    floating-point rounding). Weights are whole numbers: a value that occurred `weight` times.
    """

    def __init__(self) -> None:
        self._counts = [0] * (len(_EDGES) + 1)
        self.count = 0
        self.total = 0.0
        self.min = math.inf
        self.max = -math.inf

    @property
    def mean(self) -> float:
        """Raises ZeroDivisionError while empty."""
        return self.total / self.count

    def add(self, value: float, weight: int = 1) -> None:
        self._counts[bisect_right(_EDGES, value)] += weight
        self._book(weight, value * weight, value, value)

    def add_ramp(self, first: float, step: float, terms: int, weight: int = 1) -> None:
        """Add first, first + step, …, first + (terms - 1) * step, each `weight` times.

        Same bins as adding them one by one; the work is one division a bin, not one an element.

        Args:
            step: 0 or more.
            terms: 1 or more.
        """
        last = first + (terms - 1) * step
        last_bin = bisect_right(_EDGES, last)
        done = 0
        for i in range(bisect_right(_EDGES, first), last_bin):
            below = _terms_below(_EDGES[i], first, step)
            self._counts[i] += (below - done) * weight
            done = below
        self._counts[last_bin] += (terms - done) * weight
        total = terms * first + step * (terms * (terms - 1) // 2)
        self._book(terms * weight, total * weight, first, last)

    def merge(self, other: "LogHistogram") -> None:
        """Take in everything the other one has counted."""
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self._book(other.count, other.total, other.min, other.max)

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

    def bins(self) -> list[tuple[float, float, int]]:
        """The bins that hold something: (from, to, count), lowest first."""
        edges = (0.0, *_EDGES, math.inf)
        return [(edges[i], edges[i + 1], c) for i, c in enumerate(self._counts) if c]

    def _book(self, count: int, total: float, low: float, high: float) -> None:
        self.count += count
        self.total += total
        self.min = min(self.min, low)
        self.max = max(self.max, high)


def _rank(count: int, percent: float) -> int:
    if count == 0:
        raise ValueError("no values, so no percentile: count something first")
    if not 0 <= percent <= 100:
        raise ValueError(f"percentile {percent}: give a number from 0 to 100")
    return max(1, math.ceil(percent * count / 100))


def _terms_below(edge: float, first: float, step: float) -> int:
    """How many terms of the ramp lie below the edge, as floats compare."""
    n = math.ceil((edge - first) / step)
    # The quotient is rounded, the terms are too: settle the border by looking at its neighbours.
    while first + (n - 1) * step >= edge:
        n -= 1
    while first + n * step < edge:
        n += 1
    return n
