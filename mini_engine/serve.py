"""Replay a trace of requests on the step-cost model: what would this server have felt like?

In:  requests (arrival, prompt and output tokens), the cost of a step, the scheduler's limits and
     the dispatcher that picks a graph for each batch.
Out: a ServeReport: TTFT, ITL, throughput, padding waste, steps per mode and rung.

The rules are those of `scheduler.Scheduler`, exactly: `serve_reference` drives the real one step
by step, and the tests hold the two equal. Here nothing is done step by step that need not be:

* Every decoding request gets one token every step. So one clock that counts steps tells the
  context of all of them: clock - base, with a base of its own that never changes.
* A request that starts to decode knows the clock at which it ends: a heap gives the next ending.
* It takes a block when its context is a multiple of block_size, so when clock and base are equal
  modulo block_size: how many requests have which residue tells the blocks that any steps take.
* Until a request arrives, ends or finds no block, the batch stays as it is, and the time of all
  those steps is a closed form (`stride.Stride`).

What costs is a chunk of a prompt, an arrival, an ending, a preemption; a decode step is free, and
memory does not grow with steps.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import Protocol

from mini_engine.dispatch import BatchDescriptor, GraphDispatcher
from mini_engine.modes import CUDAGraphMode
from mini_engine.request_trace import TraceRequest
from mini_engine.scheduler import SchedulerLimits
from mini_engine.serve_report import Served, ServeReport, Tally
from mini_engine.stride import Stride


class StepCosts(Protocol):
    """What a step costs: max(cpu, gpu_base + gpu_per_kv_token * kv_tokens) us."""

    def linear(
        self, mode: CUDAGraphMode, num_tokens: int, num_reqs: int
    ) -> tuple[float, float, float]:
        """(cpu_us, gpu_base_us, gpu_us_per_kv_token) of num_tokens rows, padding included."""
        ...


def simulate(
    requests: Iterable[TraceRequest],
    costs: StepCosts,
    limits: SchedulerLimits,
    dispatcher: GraphDispatcher,
    *,
    on_served: Callable[[Served], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ServeReport:
    """Serve the requests, given in order of arrival; a generator may yield millions.

    A request whose prompt fills the context is refused, and an output that would run over its end
    is cut there; the report counts both (`Tally.admissible`).

    Args:
        on_served: called with each request as it ends.
        progress: called now and then with the number of requests read so far.

    Raises:
        ValueError: the requests are not in order of arrival.
    """
    tally = Tally(limits, dispatcher, on_served)
    server = _Server(tally.admissible(requests), costs, limits, dispatcher, tally)
    while server.take_turn():
        if progress and tally.turns % 1024 == 0:
            progress(tally.num_read)
    return tally.report()


@dataclass(slots=True, eq=False)
class _Live:
    """A request on its way through the server."""

    number: int  # in order of arrival
    arrival_us: float
    prompt: int
    output: int  # tokens that it will get
    generated: int = 0  # tokens that it has got; not kept up while it decodes
    computed: int = 0  # tokens in the cache; kept up only while it prefills
    first_token_us: float = 0.0
    last_token_us: float = 0.0  # not kept up while it decodes
    base: int = 0  # while it decodes: clock - base tokens are in the cache
    ends_at: int = 0  # while it decodes: the clock at which it has its last token


class _Server:
    """The scheduler's state, as counts. A turn is one step or one stride."""

    def __init__(
        self,
        requests: Iterator[TraceRequest],
        costs: StepCosts,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        tally: Tally,
    ) -> None:
        self.tally = tally
        self.max_reqs = limits.max_num_seqs
        self.max_tokens = limits.max_num_batched_tokens
        self.block_size = limits.block_size
        self.now_us = 0.0
        self.clock = 0  # steps so far
        self.arrivals = (
            _Live(number, r.arrival_us, r.prompt_tokens, r.output_tokens)
            for number, r in enumerate(requests)
        )
        self.next = next(self.arrivals, None)  # first in line; nothing behind it is looked at
        self.preempted: deque[_Live] = deque()  # wait in front of it
        self.decoding: dict[int, _Live] = {}  # by number, oldest first
        self.partial: _Live | None = None  # in the middle of its prompt, younger than all those
        self.endings: list[tuple[int, int]] = []  # heap of (ends_at, number), stale ones among them
        self.base_sum = 0  # of the decoding requests
        self.residues = [0] * limits.block_size  # how many of them have which base % block_size
        self.free = limits.num_blocks - 1  # blocks

        @lru_cache(maxsize=1 << 16)
        def cost(
            num_reqs: int, num_tokens: int, uniform: int | None
        ) -> tuple[BatchDescriptor, float, float, float]:
            descriptor = dispatcher.dispatch(num_reqs, num_tokens, uniform)
            return descriptor, *costs.linear(descriptor.mode, descriptor.num_tokens, num_reqs)

        self.cost = cost

    def take_turn(self) -> bool:
        """Take as many steps as can be taken at once; False when all is done."""
        if not self.decoding and not self.partial and not self.preempted:
            if self.next is None:
                return False
            self.now_us = max(self.now_us, self.next.arrival_us)
        self.tally.turns += 1
        if self.partial or self._can_admit() or not self._stride():
            self._step()
        return True

    # ---- many steps: the same decodes and nothing else ----

    def _stride(self) -> bool:
        """Step until something changes. False, and nothing done, if the first step would lack
        blocks."""
        n = len(self.decoding)
        steps = self._steps_with_blocks(self._next_ending() - self.clock)
        if steps == 0:
            return False
        descriptor, cpu_us, base_us, us_per_kv_token = self.cost(n, n, 1)
        kv_tokens = n * (self.clock + 1) - self.base_sum
        stride = Stride(cpu_us, base_us + us_per_kv_token * kv_tokens, us_per_kv_token * n)
        if self._awaits_arrival():
            steps = min(steps, stride.steps_until(self.next.arrival_us - self.now_us))
        cycles, rest = divmod(steps, self.block_size)
        self.free -= cycles * n + sum(self._blocks_at(self.clock + j) for j in range(rest))
        self.clock += steps
        self.now_us += stride.total_us(steps)
        self.tally.book_stride(descriptor, n, stride, steps, self.free)
        self._end_decodes()
        return True

    def _next_ending(self) -> int:
        """The clock at which the next decoding request ends."""
        while True:
            ends_at, number = self.endings[0]
            live = self.decoding.get(number)
            if live and live.ends_at == ends_at:
                return ends_at
            heappop(self.endings)  # stale: preempted since

    def _steps_with_blocks(self, steps: int) -> int:
        """How many of the next `steps` steps find all the blocks they need."""
        n = len(self.decoding)
        if (steps // self.block_size + 1) * n <= self.free:
            return steps
        # block_size steps take a block for each request; then step by step.
        cycles, left = divmod(self.free, n)
        found = cycles * self.block_size
        while found < steps and (taken := self._blocks_at(self.clock + found)) <= left:
            left -= taken
            found += 1
        return min(found, steps)

    def _blocks_at(self, clock: int) -> int:
        """Blocks that the decoding requests take in the step at this clock."""
        return self.residues[clock % self.block_size]

    def _awaits_arrival(self) -> bool:
        """Could a request that is yet to arrive be admitted at once? (One that has arrived and
        was not admitted has to wait for an ending, and the line behind it with it.)"""
        n = len(self.decoding)
        return (
            not self.preempted
            and self.next is not None
            and self.next.arrival_us > self.now_us
            and n < min(self.max_reqs, self.max_tokens)
        )

    def _can_admit(self) -> bool:
        """Would a step now admit the first in line?"""
        n = len(self.decoding)
        head = self._head()
        if head is None or n >= min(self.max_reqs, self.max_tokens):
            return False
        query_len = min(head.prompt + head.generated, self.max_tokens - n)
        return self._blocks(query_len) + self._blocks_at(self.clock) <= self.free

    def _head(self) -> _Live | None:
        """The first in line, if it has arrived."""
        if self.preempted:
            return self.preempted[0]
        if self.next and self.next.arrival_us <= self.now_us:
            return self.next
        return None

    # ---- one step: whatever is due ----

    def _step(self) -> None:
        chunks = self._schedule()
        n = len(self.decoding)
        rows = n + sum(query_len for _, query_len in chunks)
        kv_tokens = n * (self.clock + 1) - self.base_sum
        kv_tokens += sum(live.computed + query_len for live, query_len in chunks)
        descriptor, cpu_us, base_us, us_per_kv_token = self.cost(
            n + len(chunks), rows, None if chunks else 1
        )
        gpu_us = base_us + us_per_kv_token * kv_tokens
        self.now_us += max(cpu_us, gpu_us)
        self.clock += 1
        self.tally.book_step(descriptor, rows, n, cpu_us, gpu_us, self.free)
        self._end_decodes()
        for live, query_len in chunks:
            self._end_chunk(live, query_len)

    def _schedule(self) -> list[tuple[_Live, int]]:
        """Take this step's blocks; returns its prompt chunks as (request, query_len)."""
        chunks: list[tuple[_Live, int]] = []
        budget = self.max_tokens - len(self.decoding)
        needed = self._blocks_at(self.clock)
        if self.partial:
            live = self.partial
            query_len = min(live.prompt + live.generated - live.computed, budget)
            more = self._blocks(live.computed + query_len) - self._blocks(live.computed)
            needed += more
            if needed > self.free:
                self._preempt(live, self._blocks(live.computed))
                needed -= more
            ...
        return chunks
