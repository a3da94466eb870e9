"""The report of a simulated server: what is counted while it runs, and what follows from that.

In:  steps and strides as they are taken, requests as they end.
Out: a `ServeReport`.

Memory does not grow with steps or requests: latencies go into histograms (percentiles within
0.25%), steps into one count for each kind of step.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, fields
from typing import Any, NamedTuple

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.engine.prefix_cache import Hits
from mini_engine.serving.metrics import LogHistogram


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
    swaps: int = 0  # preemptions that kept K and V in host memory
    swapped_bytes: int = 0  # copied, out and in
    swap_us: float = 0.0  # that steps waited for these copies
    swap_saved_us: float = 0.0  # what prefilling again would have cost, less the copies
    turns: int = 0  # strides and single steps: what the simulation had to do
    busy_us: float = 0.0  # while steps were running
    first_arrival_us: float = field(default=0.0, metadata={"inner": True})
    last_token_us: float = field(default=0.0, metadata={"inner": True})
    ttft: LogHistogram = field(default_factory=LogHistogram, metadata={"inner": True})
    itl: LogHistogram = field(default_factory=LogHistogram, metadata={"inner": True})
    ran: dict[Ran, Count] = field(default_factory=dict, metadata={"inner": True})
    # What the prefix cache found of new requests, and of preempted ones; None without one.
    first_hits: Hits | None = field(default=None, metadata={"inner": True})
    resumed_hits: Hits = field(default_factory=Hits, metadata={"inner": True})

    def count_of(self, ran: Ran) -> Count:
        """Where steps of this kind are counted."""
        return self.ran.setdefault(ran, [0, 0])

    def book_steps(self, count: Count, steps: int, us: float, kv_tokens: int, free: int) -> None:
        """Steps of one kind, which took `us` and read `kv_tokens` in all; before anybody leaves,
        `free` blocks are left."""
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

    @property
    def elapsed_us(self) -> float:
        return self.last_token_us - self.first_arrival_us

    @property
    def tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_us * 1e6 if self.requests else 0.0

    @property
    def requests_per_s(self) -> float:
        return self.requests / self.elapsed_us * 1e6 if self.requests else 0.0

    @property
    def ttft_p50_us(self) -> float | None:
        return self.ttft.percentile(50) if self.ttft.count else None

    @property
    def ttft_p99_us(self) -> float | None:
        return self.ttft.percentile(99) if self.ttft.count else None

    @property
    def itl_p50_us(self) -> float | None:
        return self.itl.percentile(50) if self.itl.count else None

    @property
    def itl_p99_us(self) -> float | None:
        return self.itl.percentile(99) if self.itl.count else None

    @property
    def itl_max_us(self) -> float | None:
        return self.itl.max if self.itl.count else None

    @property
    def prefix_hit_rate(self) -> float | None:
        """Of the tokens of new requests; None without a prefix cache."""
        return self.first_hits.hit / max(1, self.first_hits.asked) if self.first_hits else None

    @property
    def prefill_tokens_saved(self) -> int:
        """Tokens of new requests that the prefix cache held."""
        return self.first_hits.hit if self.first_hits else 0

    @property
    def recompute_tokens_saved(self) -> int:
        """Tokens of preempted requests that the prefix cache held."""
        return self.resumed_hits.hit

    @property
    def steps(self) -> int:
        return sum(steps for steps, _ in self.ran.values())

    @property
    def steps_by_mode(self) -> dict[str, int]:
        counts: Counter[str] = Counter()
        for ran, (steps, _) in self.ran.items():
            counts[ran.descriptor.mode.name] += steps
        return dict(counts)

    @property
    def steps_by_rung(self) -> dict[str, dict[int, int]]:
        """Mode -> padded rows (NONE: rows) -> steps."""
        modes: dict[str, Counter[int]] = {}
        for ran, (steps, _) in self.ran.items():
            counts = modes.setdefault(ran.descriptor.mode.name, Counter())
            counts[ran.descriptor.num_tokens] += steps
        return {mode: dict(sorted(rungs.items())) for mode, rungs in modes.items()}

    @property
    def rows(self) -> int:
        """Tokens computed."""
        return sum(ran.rows * steps for ran, (steps, _) in self.ran.items())

    @property
    def padded_rows(self) -> int:
        """Rows of padding beside the tokens computed."""
        return sum((r.descriptor.num_tokens - r.rows) * steps for r, (steps, _) in self.ran.items())

    @property
    def padding_waste(self) -> float:
        """padded_rows / (rows + padded_rows); 0 when nothing was computed."""
        return self.padded_rows / (self.rows + self.padded_rows) if self.ran else 0.0

    def to_dict(self) -> dict[str, Any]:
        """For json.dumps, which writes rungs as strings."""
        names = [f.name for f in fields(self) if "inner" not in f.metadata]
        names += [name for name, value in vars(type(self)).items() if isinstance(value, property)]
        return {name: getattr(self, name) for name in names}
