"""Replay a trace of requests on the step-cost model: what would this server have felt like?

In:  requests (arrival, prompt and output tokens), the cost of a step, the scheduler's limits and
     the dispatcher that picks a graph for each batch.
Out: a ServeReport: TTFT, ITL, throughput, padding waste, steps per mode and rung.

The rules are exactly those of `scheduler.Scheduler`: `reference` drives the real one step by step,
and the tests hold the two equal. But until a request arrives, ends or finds no block, the batch
stays as it is, and all the steps until then are taken in one **stride**. `decode_clock.DecodeClock`
counts what they do to the requests; the time that they take is a closed form (`stride.Stride`). So
a decode step costs nothing to simulate, and memory does not grow with steps. What takes time is a
chunk of a prompt, an arrival, an ending, a preemption. Counts do not tell who shares a block with
whom, or whose blocks are in host memory: with a prefix cache or swapping, `by_scheduler` serves.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import cache

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.scheduler import SchedulerLimits
from mini_engine.serving.by_scheduler import simulate_by_scheduler
from mini_engine.serving.costs import CopyCosts, StepCosts
from mini_engine.serving.decode_clock import DecodeClock, Live
from mini_engine.serving.report import Ran, Served, ServeReport, Tally
from mini_engine.serving.request_trace import TraceRequest
from mini_engine.serving.stride import Stride
from mini_engine.step.step_cost import padded_step
from mini_engine.step.step_model import Line


def simulate(
    requests: Iterable[TraceRequest],
    costs: StepCosts,
    limits: SchedulerLimits,
    dispatcher: GraphDispatcher,
    *,
    copies: CopyCosts | None = None,
    on_served: Callable[[Served], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ServeReport:
    """Serve the requests, which come in order of arrival; a generator may yield millions.

    A request whose prompt fills the context is refused, and an output that would run past its end
    is cut there; the report counts both (`Tally.admissible`).

    Args:
        copies: what preempting by swap costs, if the limits ask for that.
        on_served: called with each request as it ends.
        progress: called now and then with the number of requests read so far.

    Raises:
        ValueError: the requests are not in order of arrival, or `copies` are missing.
    """
    if limits.prefix_caching or limits.preemption != "recompute":
        return simulate_by_scheduler(
            requests, costs, limits, dispatcher,
            copies=copies, on_served=on_served, progress=progress,
        )  # fmt: skip
    tally = Tally(limits, dispatcher, on_served)
    server = _Server(requests, costs, limits, dispatcher, tally)
    while server.take_turn():
        if progress and tally.turns % 1024 == 0:
            progress(tally.read)
    return tally.report()


Chunk = tuple[Live, int]  # a request and its query_len: how many tokens it prefills in this step


class _Server:
    """The scheduler's state, as counts. A turn is one stride, or one step with prompts in it."""

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        costs: StepCosts,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        tally: Tally,
    ) -> None:
        self.costs, self.limits, self.dispatcher, self.tally = costs, limits, dispatcher, tally
        self.now_us = 0.0
        self.arrivals = (
            Live(number, r.arrival_us, r.prompt_tokens, r.output_tokens)
            for number, r in enumerate(tally.admissible(requests))
        )
        self.next = next(self.arrivals, None)  # the first in line; nobody looks further
        self.preempted: deque[Live] = deque()  # they wait in front of it
        self.decoding = DecodeClock(limits.block_size)
        self.partial: Live | None = None  # in the middle of its prompt; younger than all decoding
        self.free = limits.num_blocks - 1  # blocks

        @cache  # one entry for each batch size
        def decode_cost(num_reqs: int) -> tuple[BatchDescriptor, Sequence[Line]]:
            descriptor = dispatcher.dispatch(num_reqs, num_reqs, uniform_token_count=1)
            mode, shape = padded_step(descriptor, num_reqs)
            return descriptor, costs.lines(mode, shape.num_tokens, shape.num_reqs, num_reqs)

        self.decode_cost = decode_cost

    def take_turn(self) -> bool:
        """Take as many steps as can be taken at once; False when everything is done."""
        if not (self.decoding or self.partial or self.preempted):
            if self.next is None:
                return False
            self.now_us = max(self.now_us, self.next.arrival_us)
        preemptions = self.tally.preemptions
        chunks = self._schedule_partial()
        while self.decoding.blocks_due > self.free:
            self._send_back(self.decoding.evict_youngest(), self.now_us)
        preempted = self.tally.preemptions > preemptions
        if not preempted:
            self._admit(chunks)
        if chunks:
            self._mixed_step(chunks)
        else:  # a step that preempts admits nobody, but the step after it may
            self._decode(at_most=1 if preempted else self.decoding.steps_to_ending())
        return True

    # ---- who is in the next step; as in Scheduler, running requests come first ----

    def _schedule_partial(self) -> list[Chunk]:
        """The next chunk of the request in the middle of its prompt, or none: send it back."""
        live, self.partial = self.partial, None
        if live is None:
            return []
        query_len = min(
            live.known - live.computed, self.limits.max_num_batched_tokens - len(self.decoding)
        )
        more = self._blocks(live.computed + query_len) - self._blocks(live.computed)
        if self.decoding.blocks_due + more > self.free:
            self._send_back(live, live.last_token_us)
            return []
        self.free -= more
        return [(live, query_len)]

    def _admit(self, chunks: list[Chunk]) -> None:
        """Add chunks from the front of the line while requests, tokens and blocks may be added."""
        places = self.limits.max_num_seqs - len(self.decoding) - len(chunks)
        budget = self.limits.max_num_batched_tokens - len(self.decoding)
        budget -= sum(query_len for _, query_len in chunks)
        while places > 0 and budget > 0 and (live := self._head()):
            query_len = min(live.known, budget)
            wanted = self._blocks(live.known if self.limits.reserve_full_isl else query_len)
            if wanted + self.decoding.blocks_due > self.free:
                return
            if self.preempted:
                self.preempted.popleft()
            else:
                self.next = next(self.arrivals, None)
            self.free -= self._blocks(query_len)
            chunks.append((live, query_len))
            places -= 1
            budget -= query_len

    def _head(self) -> Live | None:
        """The first in line, if it has arrived."""
        if self.preempted:
            return self.preempted[0]
        if self.next and self.next.arrival_us <= self.now_us:
            return self.next
        return None

    def _send_back(self, live: Live, last_token_us: float) -> None:
        """Preempt: it keeps its tokens and loses its cache."""
        self.free += self._blocks(live.computed)
        self.tally.book_preemption(live.computed)
        live.computed = 0
        live.last_token_us = last_token_us
        self.preempted.appendleft(live)

    # ---- what the step does ----

    def _decode(self, at_most: int) -> None:
        """Decode until a request ends or may come in, or until blocks run out."""
        n = len(self.decoding)
        steps = self.decoding.steps_with_blocks(self.free, at_most)
        descriptor, lines = self.decode_cost(n)
        kv_tokens = self.decoding.kv_tokens
        stride = Stride([(us + per_key * kv_tokens, per_key * n) for us, per_key in lines], steps)
        # A request that has arrived and was not admitted waits for an ending; so do all behind it.
        if self.next and self._head() is None:
            stride.cut(self.next.arrival_us - self.now_us)
        kv_tokens = kv_tokens * stride.steps + n * (stride.steps * (stride.steps - 1) // 2)
        self._advance(Ran(descriptor, n, uniform=True), stride, kv_tokens)

    def _mixed_step(self, chunks: list[Chunk]) -> None:
        """One step of every decoding request and these chunks, which have their blocks."""
        num_tokens = num_reqs = len(self.decoding)
        kv_tokens = qk_pairs = self.decoding.kv_tokens
        for live, query_len in chunks:
            context = live.computed + query_len
            num_tokens += query_len
            num_reqs += 1
            kv_tokens += context
            qk_pairs += query_len * context - query_len * (query_len - 1) // 2
        descriptor = self.dispatcher.dispatch(num_reqs, num_tokens)
        us = self.costs.itl_us(*padded_step(descriptor, num_reqs, kv_tokens, qk_pairs))
        self._advance(Ran(descriptor, num_tokens, uniform=False), Stride([(us, 0.0)], 1), kv_tokens)
        for live, query_len in chunks:
            live.computed += query_len
            if live.computed < live.known:
                self.partial = live
            else:
                self._sample(live)

    def _advance(self, ran: Ran, stride: Stride, kv_tokens: int) -> None:
        """Let the steps of the stride pass for the decoding requests."""
        self.free -= self.decoding.blocks_taken(stride.steps)
        self.now_us += stride.total_us
        self.tally.book_steps(ran, stride, kv_tokens, len(self.decoding), self.free)
        for live in self.decoding.advance(stride.steps):
            self._end(live)

    def _sample(self, live: Live) -> None:
        """All its known tokens are computed: it gets the next one and decodes from here on."""
        if live.generated == 0:
            live.first_token_us = self.now_us
        else:
            self.tally.itl.add(self.now_us - live.last_token_us)
        live.generated += 1
        if live.generated == live.output:
            self._end(live)
        else:
            self.decoding.begin(live)

    def _end(self, live: Live) -> None:
        self.free += self._blocks(live.computed)
        served = Served(live.number, live.arrival_us, live.first_token_us, self.now_us)
        self.tally.book_served(served, live.output)

    def _blocks(self, tokens: int) -> int:
        return -(-tokens // self.limits.block_size)
