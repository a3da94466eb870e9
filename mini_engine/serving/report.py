"""The report of a simulated server: what is counted while it runs, and what follows from that.

Memory does not grow with steps or requests: latencies go into histograms (percentiles within
0.25%), steps into one count for each kind of step. A **percentile** of n values is the
ceil(p/100 * n)-th in order (Hyndman & Fan 1996, "Sample Quantiles", definition 1)."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from itertools import accumulate
from typing import Any, NamedTuple

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.engine.prefix_cache import Hits


def percentile(values: Iterable[float], percent: float) -> float:
    """Nearest-rank percentile of one value or more."""
    ordered = sorted(values)
    return ordered[_rank(len(ordered), percent) - 1]


GROWTH = 1.005  # ratio of a bin's edges
LOWEST, HIGHEST = 1e-3, 1e12  # in us: a nanosecond to eleven days
_EDGES = tuple(LOWEST * GROWTH**i for i in range(2 + int(math.log(HIGHEST / LOWEST, GROWTH))))


@dataclass
class LogHistogram:
    """Counts of positive values in bins of constant ratio, and exact count, min and max. Bin i
    holds _EDGES[i-1] <= value < _EDGES[i]. A value of weight w counts as w equal values."""

    count: int = 0
    min: float = math.inf
    max: float = -math.inf
    _counts: list[int] = field(default_factory=lambda: [0] * (len(_EDGES) + 1))

    def add(self, value: float, weight: int = 1) -> None:
        self._counts[bisect_right(_EDGES, value)] += weight
        self._book(weight, value, value)

    def add_ramp(self, first: float, step: float, terms: int, weight: int = 1) -> None:
        """Add first, first + step (0 or more), …, `terms` of them (1 or more), `weight` times."""
        last = first + (terms - 1) * step
        last_bin = bisect_right(_EDGES, last)
        done = 0
        for i in range(bisect_right(_EDGES, first), last_bin):
            below = _terms_below(_EDGES[i], first, step)
            self._counts[i] += (below - done) * weight
            done = below
        self._counts[last_bin] += (terms - done) * weight
        self._book(terms * weight, first, last)

    def merge(self, other: LogHistogram) -> None:
        self._counts = [a + b for a, b in zip(self._counts, other._counts, strict=True)]
        self._book(other.count, other.min, other.max)

    def percentile(self, percent: float) -> float:
        """Nearest-rank percentile, within 0.25%, of one value or more."""
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
    return max(1, math.ceil(percent * count / 100))


def _terms_below(edge: float, first: float, step: float) -> int:
    n = math.ceil((edge - first) / step)
    # Quotient and terms are rounded: check the terms on both sides of the edge.
    while first + (n - 1) * step >= edge:
        n -= 1
    while first + n * step < edge:
        n += 1
    return n


@dataclass(frozen=True, slots=True)
class Served:
    """One request that has ended; `number` counts the served ones in order of arrival."""

    number: int
    arrival_us: float
    first_token_us: float
    finished_us: float


class Ran(NamedTuple):
    """A kind of step: what it ran as, its rows before padding, and whether all were decodes."""

    descriptor: BatchDescriptor
    rows: int
    uniform: bool


Count = list[int]  # of one kind of step: how many, and the KV tokens that all of them read


@dataclass
class ServeReport:
    """Times are the simulated server's; rates are from the first arrival to the last token."""

    mode: str
    capture_sizes: tuple[int, ...]
    kv_blocks: int  # without the null block
    kv_blocks_peak: int = 0
    requests: int = 0  # served to the end
    refused: int = 0  # the prompt filled the context
    truncated: int = 0  # the output was cut where the context ended
    prompt_tokens: int = 0
    output_tokens: int = 0
    preemptions: int = 0
    recomputed_tokens: int = 0  # their K and V were in the cache and were thrown away
    turns: int = 0  # strides and single steps: what the simulation had to do
    busy_us: float = 0.0  # while steps were running
    # What follows from these and the counts below, when all is served (`finish`).
    elapsed_us: float = 0.0
    tokens_per_s: float = 0.0
    requests_per_s: float = 0.0
    ttft_p50_us: float | None = None
    ttft_p99_us: float | None = None
    itl_p50_us: float | None = None
    itl_p99_us: float | None = None
    itl_max_us: float | None = None
    prefix_hit_rate: float | None = None  # of the tokens of new requests; None without the cache
    prefill_tokens_saved: int = 0  # of new requests, by the prefix cache
    recompute_tokens_saved: int = 0  # of preempted requests, by the prefix cache
    steps: int = 0
    steps_by_mode: Counter[str] = field(default_factory=Counter)
    steps_by_rung: dict[str, Counter[int]] = field(default_factory=dict)  # NONE: by rows
    rows: int = 0  # tokens computed
    padded_rows: int = 0  # rows of padding beside them
    padding_waste: float = 0.0  # padded_rows / (rows + padded_rows)
    # Counted on the way, and not part of `to_dict`.
    first_arrival_us: float = 0.0
    last_token_us: float = 0.0
    ttft: LogHistogram = field(default_factory=LogHistogram)
    itl: LogHistogram = field(default_factory=LogHistogram)
    ran: dict[Ran, Count] = field(default_factory=dict)
    # What the prefix cache found of new requests, and of preempted ones; None without one.
    first_hits: Hits | None = None
    resumed_hits: Hits = field(default_factory=Hits)

    def count_of(self, ran: Ran) -> Count:
        """Where steps of this kind are counted."""
        return self.ran.setdefault(ran, [0, 0])

    def histogram(self, top: int) -> dict[int, int]:
        """Rows of a step before padding -> steps, up to `top` rows."""
        steps = Counter[int]()
        for ran, (count, _) in self.ran.items():
            steps[ran.rows] += count
        return {rows: count for rows, count in sorted(steps.items()) if rows <= top}

    def book_steps(self, count: Count, steps: int, us: float, kv_tokens: int, free: int) -> None:
        """Steps of one kind: `us` and `kv_tokens` of all; `free` blocks before anybody leaves."""
        self.turns += 1
        count[0] += steps
        count[1] += kv_tokens
        self.busy_us += us
        self.kv_blocks_peak = max(self.kv_blocks_peak, self.kv_blocks - free)

    def book_served(self, served: Served, output_tokens: int) -> None:
        self.requests += 1
        self.output_tokens += output_tokens
        self.ttft.add(served.first_token_us - served.arrival_us)
        self.last_token_us = served.finished_us

    def finish(self) -> ServeReport:
        """The report of a server that has served all."""
        if self.requests:
            self.elapsed_us = self.last_token_us - self.first_arrival_us
            self.tokens_per_s = self.output_tokens / self.elapsed_us * 1e6
            self.requests_per_s = self.requests / self.elapsed_us * 1e6
            self.ttft_p50_us, self.ttft_p99_us = map(self.ttft.percentile, (50, 99))
        if self.itl.count:
            self.itl_p50_us, self.itl_p99_us = map(self.itl.percentile, (50, 99))
            self.itl_max_us = self.itl.max
        if self.first_hits:
            self.prefill_tokens_saved = self.first_hits.hit
            self.prefix_hit_rate = self.first_hits.hit / max(1, self.first_hits.asked)
        self.recompute_tokens_saved = self.resumed_hits.hit
        for ran, (steps, _) in self.ran.items():
            mode, padded = ran.descriptor.mode.name, ran.descriptor.num_tokens
            self.steps += steps
            self.rows += ran.rows * steps
            self.padded_rows += (padded - ran.rows) * steps
            self.steps_by_mode[mode] += steps
            self.steps_by_rung.setdefault(mode, Counter())[padded] += steps
        for mode, rungs in self.steps_by_rung.items():
            self.steps_by_rung[mode] = Counter(dict(sorted(rungs.items())))
        self.padding_waste = self.padded_rows / max(1, self.rows + self.padded_rows)
        return self

    def to_dict(self) -> dict[str, Any]:
        """For json.dumps, which writes rungs as strings."""
        names = [one.name for one in fields(self)]
        return {name: getattr(self, name) for name in names[: names.index("first_arrival_us")]}
