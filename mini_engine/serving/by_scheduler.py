"""Replay a trace with the engine's own scheduler: for prefix caching, and for preemption by swap.

In and out: as `simulate.simulate`, which calls this where counts alone do not tell who shares a
block with whom, or whose blocks are in host memory.

Every step with a prompt, a preemption or a copy in it is one `Scheduler.step`. As long as the same
requests only decode, many steps are taken in one stride, as in `simulate`: each request gets its
tokens and blocks at once. That is exact, since during a stride nothing is freed and no text is
found: whatever order blocks are handed out in, the same ones are.

Copies do not overlap the step: it begins when they are done.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cache
from typing import overload

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.engine.scheduler import Request, RequestState, ScheduledBatch, SchedulerLimits
from mini_engine.engine.swap import scheduler_for
from mini_engine.serving.costs import CopyCosts, StepCosts
from mini_engine.serving.report import Ran, Served, ServeReport, Tally
from mini_engine.serving.request_trace import TraceRequest
from mini_engine.serving.stride import Stride
from mini_engine.step.oplists import StepShape
from mini_engine.step.step_cost import padded_step
from mini_engine.step.step_model import Line

OWN_TOKENS = 1 << 32  # token ids of a request, so that no other request has the same


def simulate_by_scheduler(
    requests: Iterable[TraceRequest],
    costs: StepCosts,
    limits: SchedulerLimits,
    dispatcher: GraphDispatcher,
    *,
    copies: CopyCosts | None = None,
    on_served: Callable[[Served], None] | None = None,
    progress: Callable[[int], None] | None = None,
    longest_stride: int | None = None,
) -> ServeReport:
    """As `simulate.simulate`. `longest_stride`: 1 takes every step by itself."""
    if copies is None and limits.preemption != "recompute":
        raise ValueError(
            f"preemption {limits.preemption!r} copies blocks: give `copies`, what that costs "
            "(predict.swap_cost.SwapCost)"
        )
    tally = Tally(limits, dispatcher, on_served)
    server = _Server(requests, costs, limits, dispatcher, tally, copies, longest_stride)
    while server.take_turn():
        if progress and tally.turns % 1024 == 0:
            progress(tally.read)
    if limits.prefix_caching:
        tally.book_hits(server.scheduler.first_hits, server.scheduler.resumed_hits)
    return tally.report()


class PromptIds(Sequence[int]):
    """Tokens of a prompt: those that all sharing prompts begin with, then its own.

    They are made when they are asked for: thousands of requests may wait with theirs.
    """

    def __init__(self, number: int, request: TraceRequest) -> None:
        shared = min(request.shared_tokens, request.prompt_tokens)
        own = (number + 1) * OWN_TOKENS
        self._shared, self._own = range(shared), range(own, own + request.prompt_tokens - shared)

    def __len__(self) -> int:
        return len(self._shared) + len(self._own)

    @overload
    def __getitem__(self, at: int) -> int: ...
    @overload
    def __getitem__(self, at: slice) -> list[int]: ...
    def __getitem__(self, at: int | slice) -> int | list[int]:
        shared, first = self._shared, len(self._shared)
        if isinstance(at, slice):
            start, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError(f"a slice of a prompt with step {step}: expected 1")
            return [*shared[start:stop], *self._own[max(start - first, 0) : max(stop - first, 0)]]
        place = range(len(self))[at]
        return place if place < first else self._own[place - first]


class _Server:
    """The scheduler, the clock, and when each request got its last token."""

    def __init__(
        self,
        requests: Iterable[TraceRequest],
        costs: StepCosts,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        tally: Tally,
        copies: CopyCosts | None,
        longest_stride: int | None,
    ) -> None:
        self.costs, self.dispatcher, self.tally, self.copies = costs, dispatcher, tally, copies
        self.longest_stride = longest_stride
        self.scheduler = scheduler_for(limits, copies.saves_us if copies else None)
        self.now_us = 0.0
        self.arrivals = (
            Request(
                str(number),
                PromptIds(number, r) if limits.prefix_caching else range(r.prompt_tokens),
                r.output_tokens,
                r.arrival_us,
            )
            for number, r in enumerate(tally.admissible(requests))
        )
        self.next = next(self.arrivals, None)
        self.first_token_us: dict[str, float] = {}
        self.last_token_us: dict[str, float] = {}

        @cache  # one entry for each batch size
        def decode_lines(descriptor: BatchDescriptor, num_reqs: int) -> tuple[Line, ...]:
            mode, shape = padded_step(descriptor, num_reqs)
            return tuple(costs.lines(mode, shape.num_tokens, shape.num_reqs, num_reqs))

        self.decode_lines = decode_lines

    def take_turn(self) -> bool:
        """One step, or a stride of decode steps; False when everything is done."""
        scheduler = self.scheduler
        if not scheduler.has_unfinished:
            if self.next is None:
                return False
            self.now_us = max(self.now_us, self.next.arrival_us)
        while self.next and self.next.arrival_us <= self.now_us:
            scheduler.submit(self.next)
            self.next = next(self.arrivals, None)
        cached = {state.request.request_id: state.num_computed for state in scheduler.running}
        batch = scheduler.step()
        assert batch is not None
        self._book_preemptions(batch, cached)
        self._run(batch)
        return True

    def _book_preemptions(self, batch: ScheduledBatch, cached: dict[str, int]) -> None:
        if not batch.preempted:
            return
        waiting = {state.request.request_id: state for state in self.scheduler.waiting}
        for request in batch.preempted:
            tokens = cached[request.request_id]
            swapped = waiting[request.request_id].num_computed > 0
            if swapped:
                assert self.copies
                self.tally.book_swap(self.copies.saves_us(tokens))
            self.tally.book_preemption(0 if swapped else tokens)

    def _run(self, batch: ScheduledBatch) -> None:
        """Let the batch run, as often as it stays the same, and the time pass."""
        began_us, n = self.now_us, batch.num_reqs
        uniform = uniform_token_count(batch.query_lens, has_prefill=batch.has_prefill)
        descriptor = self.dispatcher.dispatch(n, batch.num_tokens, uniform)
        kv_tokens = sum(batch.context_lens)
        copies_us = self._copies_us(batch)
        alone = batch.has_prefill or batch.preempted or copies_us
        most = 1 if alone else self._longest_stride(batch)
        if most == 1:
            shape = StepShape.mixed(batch.query_lens, batch.context_lens)
            padded = padded_step(descriptor, n, shape.kv_tokens, shape.qk_pairs)
            stride = Stride([(self.costs.itl_us(*padded) + copies_us, 0.0)], 1)
        else:
            lines = self.decode_lines(descriptor, n)
            stride = Stride([(us + key * kv_tokens, key * n) for us, key in lines], most)
            if self.next and not self.scheduler.waiting:  # else all wait for an ending
                stride.cut(self.next.arrival_us - self.now_us)
            self._go_on(batch, stride.steps - 1)
        self.now_us += stride.total_us
        # Who had to wait between two tokens is booked below, and not with the step.
        decodes = sum(
            not entry.is_prefill and self.last_token_us[entry.request.request_id] == began_us
            for entry in batch.entries
        )
        kv_tokens = kv_tokens * stride.steps + n * (stride.steps * (stride.steps - 1) // 2)
        ran = Ran(descriptor, batch.num_tokens, uniform=not batch.has_prefill)
        self.tally.book_steps(ran, stride, kv_tokens, decodes, self.scheduler.pool.num_free)
        self._sample(batch, began_us)

    def _copies_us(self, batch: ScheduledBatch) -> float:
        if not (self.copies and (batch.swap_out or batch.swap_in)):
            return 0.0
        us = sum(self.copies.copy_us(len(way)) for way in (batch.swap_out, batch.swap_in))
        blocks = len(batch.swap_out) + len(batch.swap_in)
        self.tally.book_copies(blocks * self.copies.block_bytes, us)
        return us

    def _longest_stride(self, batch: ScheduledBatch) -> int:
        """Steps until a request of this batch of decodes ends, or until blocks run out."""
        pool = self.scheduler.pool
        ends = (e.request.max_new_tokens - len(e.state.output) for e in batch.entries)
        high = min(*ends, self.longest_stride) if self.longest_stride else min(ends)
        contexts = batch.context_lens

        def blocks(steps: int) -> int:
            """That `steps` steps take beyond the first, which has them."""
            return sum(pool.blocks_for(c + steps - 1) - pool.blocks_for(c) for c in contexts)

        low = 1
        if (high // pool.block_size + 1) * len(contexts) <= pool.num_free:
            low = high
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if blocks(middle) <= pool.num_free else (low, middle - 1)
        return low

    def _go_on(self, batch: ScheduledBatch, steps: int) -> None:
        """Give every request of a batch of decodes the tokens and blocks of `steps` more steps."""
        for entry in batch.entries:
            state = entry.state
            state.output += [_token(state)] * steps
            state.num_computed += steps
            self.scheduler.pool.allocate(entry.request.request_id, state.num_computed + 1)

    def _sample(self, batch: ScheduledBatch, began_us: float) -> None:
        sampling = [entry.state for entry in batch.entries if entry.samples]
        for state in sampling:
            request_id = state.request.request_id
            before_us = self.last_token_us.get(request_id)
            if before_us is None:
                self.first_token_us[request_id] = self.now_us
            elif before_us != began_us:
                self.tally.itl.add(self.now_us - before_us)
            self.last_token_us[request_id] = self.now_us
        for state in self.scheduler.update(batch, [_token(state) for state in sampling]):
            request = state.request
            first_us = self.first_token_us.pop(request.request_id)
            del self.last_token_us[request.request_id]
            served = Served(int(request.request_id), request.arrival_us, first_us, self.now_us)
            self.tally.book_served(served, request.max_new_tokens)


def _token(state: RequestState) -> int:
    """What a request writes, again and again: a token that no other text has."""
    return (int(state.request.request_id) + 1) * OWN_TOKENS - 1
