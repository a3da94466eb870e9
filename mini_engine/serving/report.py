"""The report of a simulated server, and the counts that it is made from.

In:  steps and strides as they are taken, requests as they end (`Tally`).
Out: a `ServeReport`.

Memory does not grow with steps or requests: latencies go into histograms (percentiles within
0.25%), steps into one count for each kind of step.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.prefix_cache import Hits
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.serving.metrics import LogHistogram, padding_waste
from mini_engine.serving.request_trace import TraceRequest
from mini_engine.serving.stride import Stride


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


@dataclass(frozen=True)
class ServeReport:
    """Times are the simulated server's; rates are from the first arrival to the last token."""

    mode: str
    capture_sizes: tuple[int, ...]
    requests: int  # served to the end
    refused: int  # the prompt filled the context
    truncated: int  # the output was cut where the context ended
    prompt_tokens: int
    output_tokens: int
    preemptions: int
    recomputed_tokens: int  # their K and V were in the cache and were thrown away
    swaps: int  # preemptions that kept K and V in host memory
    swapped_bytes: int  # copied, out and in
    swap_us: float  # that steps waited for these copies
    swap_saved_us: float  # what prefilling again would have cost, less the copies
    prefix_hit_rate: float | None  # of the tokens of new requests; None without a prefix cache
    prefill_tokens_saved: int  # found in the prefix cache: of new requests ...
    recompute_tokens_saved: int  # ... and of preempted ones
    elapsed_us: float
    busy_us: float  # while steps were running
    ttft_p50_us: float | None
    ttft_p99_us: float | None
    itl_p50_us: float | None
    itl_p99_us: float | None
    itl_max_us: float | None
    tokens_per_s: float
    requests_per_s: float
    steps: int
    turns: int  # strides and single steps: what the simulation had to do
    steps_by_mode: dict[str, int]
    steps_by_rung: dict[str, dict[int, int]]  # mode -> padded rows (NONE: rows) -> steps
    rows: int  # tokens computed
    padded_rows: int  # and rows of padding beside them
    padding_waste: float  # padded_rows / (rows + padded_rows)
    kv_blocks: int  # without the null block
    kv_blocks_peak: int
    ran: Mapping[Ran, tuple[int, int]]  # kind of step -> steps, and kv_tokens of all of them

    def to_dict(self) -> dict[str, Any]:
        """For json.dumps (which writes rungs as strings); without `ran`."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "ran"}


class Tally:
    """Counts, one call a turn."""

    def __init__(
        self,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        on_served: Callable[[Served], None] | None,
    ) -> None:
        self.limits, self.dispatcher, self.on_served = limits, dispatcher, on_served
        self.read = self.refused = self.truncated = self.served = 0
        self.prompt_tokens = self.output_tokens = 0
        self.preemptions = self.recomputed_tokens = 0
        self.swaps = self.swapped_bytes = 0
        self.swap_us = self.swap_saved_us = 0.0
        self.first_hits: Hits | None = None
        self.resumed_hits = Hits()
        self.turns = 0
        self.ran: dict[Ran, list[int]] = {}  # steps, and kv_tokens of all of them
        self.ttft, self.itl = LogHistogram(), LogHistogram()
        self.first_arrival_us = self.end_us = self.busy_us = 0.0
        self.least_free = limits.num_blocks - 1

    def admissible(self, requests: Iterable[TraceRequest]) -> Iterator[TraceRequest]:
        """The requests that can be served, each as it will be.

        A context fits into max_model_len, or into the whole KV cache if that is less. A prompt that
        leaves no room for a token is refused; an output that does not fit is cut.

        Raises:
            ValueError: a request arrives before the one in front of it.
        """
        usable = (self.limits.num_blocks - 1) * self.limits.block_size
        context = min(self.limits.max_model_len, usable)
        before_us = 0.0
        for r in requests:
            if r.arrival_us < before_us:
                raise ValueError(
                    f"request {self.read} arrives at {r.arrival_us} us, the one before it at "
                    f"{before_us} us: sort requests by arrival, from 0 on"
                )
            before_us = r.arrival_us
            self.read += 1
            room = context - r.prompt_tokens
            if room < 1:
                self.refused += 1
                continue
            if self.prompt_tokens == 0:
                self.first_arrival_us = r.arrival_us
            self.prompt_tokens += r.prompt_tokens
            if room < r.output_tokens:
                self.truncated += 1
                r = replace(r, output_tokens=room)
            yield r

    def book_steps(self, ran: Ran, stride: Stride, kv_tokens: int, decodes: int, free: int) -> None:
        """Steps of one kind, which read `kv_tokens` in all and left `free` blocks.

        Each step gave a token to `decodes` requests, which got the one before it when the step
        began.
        """
        self.turns += 1
        counts = self.ran.setdefault(ran, [0, 0])
        counts[0] += stride.steps
        counts[1] += kv_tokens
        self.busy_us += stride.total_us
        self.least_free = min(self.least_free, free)
        if decodes:
            stride.add_to(self.itl, decodes)

    def book_preemption(self, tokens: int) -> None:
        """A request lost its `tokens` tokens of cache."""
        self.preemptions += 1
        self.recomputed_tokens += tokens

    def book_swap(self, saved_us: float) -> None:
        """A preempted request keeps its cache in host memory."""
        self.swaps += 1
        self.swap_saved_us += saved_us

    def book_copies(self, num_bytes: int, us: float) -> None:
        self.swapped_bytes += num_bytes
        self.swap_us += us

    def book_hits(self, first: Hits, resumed: Hits) -> None:
        """What a prefix cache found in all."""
        self.first_hits, self.resumed_hits = first, resumed

    def book_served(self, served: Served, output_tokens: int) -> None:
        self.served += 1
        self.output_tokens += output_tokens
        self.ttft.add(served.first_token_us - served.arrival_us)
        self.end_us = served.finished_us
        if self.on_served:
            self.on_served(served)

    def report(self) -> ServeReport:
        by_mode: Counter[str] = Counter()
        by_rung: dict[str, Counter[int]] = {}
        rows = computed = 0
        for ran, (steps, _) in self.ran.items():
            mode, rung = ran.descriptor.mode, ran.descriptor.num_tokens
            by_mode[mode.name] += steps
            by_rung.setdefault(mode.name, Counter())[rung] += steps
            rows += ran.rows * steps
            computed += rung * steps
        elapsed_us = self.end_us - self.first_arrival_us
        per_s = 1e6 / elapsed_us if elapsed_us > 0 else 0.0
        itl, ttft, first = self.itl, self.ttft, self.first_hits
        return ServeReport(
            mode=self.dispatcher.mode.name,
            capture_sizes=tuple(self.dispatcher.sizes),
            requests=self.served,
            refused=self.refused,
            truncated=self.truncated,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            preemptions=self.preemptions,
            recomputed_tokens=self.recomputed_tokens,
            swaps=self.swaps,
            swapped_bytes=self.swapped_bytes,
            swap_us=self.swap_us,
            swap_saved_us=self.swap_saved_us,
            prefix_hit_rate=first.hit / max(1, first.asked) if first else None,
            prefill_tokens_saved=first.hit if first else 0,
            recompute_tokens_saved=self.resumed_hits.hit,
            elapsed_us=elapsed_us,
            busy_us=self.busy_us,
            ttft_p50_us=ttft.percentile(50) if ttft.count else None,
            ttft_p99_us=ttft.percentile(99) if ttft.count else None,
            itl_p50_us=itl.percentile(50) if itl.count else None,
            itl_p99_us=itl.percentile(99) if itl.count else None,
            itl_max_us=itl.max if itl.count else None,
            tokens_per_s=self.output_tokens * per_s,
            requests_per_s=self.served * per_s,
            steps=sum(by_mode.values()),
            turns=self.turns,
            steps_by_mode=dict(by_mode),
            steps_by_rung={mode: dict(sorted(rungs.items())) for mode, rungs in by_rung.items()},
            rows=rows,
            padded_rows=computed - rows,
            padding_waste=padding_waste(rows, computed),
            kv_blocks=self.limits.num_blocks - 1,
            kv_blocks_peak=self.limits.num_blocks - 1 - self.least_free,
            ran={ran: (steps, kv_tokens) for ran, (steps, kv_tokens) in self.ran.items()},
        )
