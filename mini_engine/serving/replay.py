"""Replay a trace of requests with the engine's own scheduler: how would this server have felt?

    server = size_server(shape, spec, "FULL_AND_PIECEWISE", sizes)
    report = replay(requests, StepModel(shape, spec), server.limits, server.dispatcher)

`Scheduler.step` chooses the batch at every event: a chunk of a prompt, an arrival, an ending, a
preemption. Between two events the same requests decode side by side. All of these steps are taken
in one **stride**: every request gets its tokens and blocks at once. That is exact: no block is
freed meanwhile, and no prompt is looked up in the prefix cache.

The time of a stride is a closed form. Each step adds n keys to what attention reads, and a step
takes the highest of a few lines in the number of keys (`StepModel.lines`), so step j takes the
highest of some first_us + j * growth_us: a few straight pieces (`Ramp`), flat while the CPU is the
slower one and rising once the GPU is. A ramp has a known sum."""

from __future__ import annotations

import math
import time
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import NamedTuple

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.engine.batch import Request, RequestState, ScheduledBatch, SchedulerLimits
from mini_engine.engine.scheduler import Scheduler
from mini_engine.serving.report import Count, Ran, Served, ServeReport
from mini_engine.serving.request_trace import TraceRequest
from mini_engine.step.run import padded_step
from mini_engine.step.step_model import Line, StepModel

OWN_TOKENS = 1 << 32  # token ids that belong to one request alone


def replay(
    requests: Iterable[TraceRequest], costs: StepModel, limits: SchedulerLimits,
    dispatcher: GraphDispatcher, *, on_served: Callable[[Served], None] | None = None,
) -> ServeReport:  # fmt: skip
    """Serve the requests; a generator may yield millions. A context fits into max_model_len, or
    into the whole KV cache if that is less. A prompt that leaves no room for a token is refused,
    and an output that does not fit is cut. Raises ValueError where the requests are not in order of
    arrival."""
    replica = Replica(costs, limits, dispatcher, on_served=on_served)
    before_us, number = 0.0, 0
    for at, request in enumerate(requests):
        if request.arrival_us < before_us:
            raise ValueError(f"request {at} arrives at {request.arrival_us} us, before {before_us} "
                             "us: sort requests by arrival, from 0 on")  # fmt: skip
        before_us = request.arrival_us
        replica.advance_to(before_us, watched=False)
        number += replica.submit(number, request)
    replica.advance_to(math.inf)
    return replica.report.finish()


def prompt_ids(number: int, request: TraceRequest) -> Sequence[int]:
    """Token ids of a prompt: those that all sharing prompts begin with, then its own."""
    shared = min(request.shared_tokens, request.prompt_tokens)
    own, first = (number + 1) * OWN_TOKENS, -request.prefix * OWN_TOKENS
    alone = range(own, own + request.prompt_tokens - shared)
    return array("q", [*range(first, first + shared), *alone])


class StepTaken(NamedTuple):
    batch: ScheduledBatch
    descriptor: BatchDescriptor


class Replica:
    """A server: the scheduler, the clock, and the report that is written on the way. Whoever drives
    it says what arrives (`submit`) and up to when it runs (`advance_to`)."""

    def __init__(
        self, costs: StepModel, limits: SchedulerLimits, dispatcher: GraphDispatcher, *,
        on_served: Callable[[Served], None] | None = None,
    ) -> None:  # fmt: skip
        self.costs, self.limits, self.dispatcher = costs, limits, dispatcher
        self.on_served, self.sharing = on_served, limits.prefix_caching
        self.scheduler = Scheduler(limits)
        self.report = ServeReport(
            dispatcher.mode.name, dispatcher.sizes, limits.num_blocks - 1,
            first_hits=self.scheduler.first_hits if self.sharing else None,
            resumed_hits=self.scheduler.resumed_hits,
        )  # fmt: skip
        self.now_us, self.outstanding = 0.0, 0  # tokens of prompts and answers, at most
        usable = (limits.num_blocks - 1) * limits.block_size
        self.context = min(limits.max_model_len, usable)  # tokens of a request
        self.settled = False  # all running requests decode, and nobody can enter before one ends
        self.first_token_us: dict[str, float] = {}
        # When a request that was preempted got its last token, until it gets the next one.
        self.paused_us: dict[str, float] = {}
        self.decode = cache(self._decode)  # one entry for each batch size

    @property
    def unfinished(self) -> int:
        """Requests that wait or run."""
        return len(self.scheduler.running) + len(self.scheduler.waiting)

    def submit(
        self, number: int, r: TraceRequest, *,
        at_us: float | None = None, first_token_us: float | None = None,
    ) -> bool:  # fmt: skip
        """Take a request, up to whose arrival the replica has advanced; False where its prompt
        leaves no room for a token. `number`: its own among those of the replica. `first_token_us`:
        another server has computed its prompt and first token; it comes with K and V at `at_us`."""
        report, room = self.report, self.context - r.prompt_tokens
        if room < 1:
            report.refused += 1
            return False
        if not report.prompt_tokens:
            report.first_arrival_us = r.arrival_us
        report.prompt_tokens += r.prompt_tokens
        report.truncated += room < r.output_tokens
        prompt = prompt_ids(number, r) if self.sharing else range(r.prompt_tokens)
        request = Request(str(number), prompt, min(r.output_tokens, room), r.arrival_us)
        at_us = r.arrival_us if at_us is None else at_us
        if first_token_us is None:
            self.enter(request, at_us)
            return True
        known = [*prompt, self._token(request)] if self.sharing else range(r.prompt_tokens + 1)
        request = replace(request, prompt=known, max_new_tokens=request.max_new_tokens - 1)
        self.enter(request, at_us, num_computed=r.prompt_tokens)
        self.first_token_us[str(number)] = self.paused_us[str(number)] = first_token_us
        return True

    def enter(self, request: Request, at_us: float, num_computed: int = 0) -> None:
        """The same for a request as the scheduler sees it (`Scheduler.submit`); its id is a number.
        Raises ValueError for one that can never be served."""
        scheduler = self.scheduler
        idle, settled = not scheduler.has_unfinished, self.settled and bool(scheduler.waiting)
        scheduler.submit(request, num_computed)
        if idle:
            self.now_us = max(self.now_us, at_us)
        self.settled = settled  # it stands behind one that has to wait, or it may enter
        self.outstanding += len(request.prompt) + request.max_new_tokens

    def cancel(self, request_id: str) -> bool:
        """Forget a request between two steps; False where it has ended."""
        state = self.scheduler.cancel(request_id)
        if state:
            self._leave(state)
            self.settled = False
        return state is not None

    def advance_to(self, us: float, *, watched: bool = True) -> None:
        """Take every step that begins before `us`; the last one may end later. Not `watched`: until
        the next `submit` nobody looks, so where an arrival could only stand behind those who wait,
        a stride goes on beyond it."""
        while self.scheduler.has_unfinished and self.now_us < us:
            until = us if watched or not self.scheduler.waiting else math.inf
            if not (self.settled and self.stride(until)):
                self.step()

    def _decode(self, num_reqs: int) -> tuple[Count, tuple[Line, ...]]:
        """Where steps of so many decodes count, and their time as lines over KV tokens."""
        descriptor = self.dispatcher.dispatch(num_reqs, num_reqs, uniform_token_count=1)
        mode, shape = padded_step(descriptor, num_reqs)
        lines = self.costs.lines(mode, shape.num_tokens, shape.num_reqs, num_reqs)
        return self.report.count_of(Ran(descriptor, num_reqs, uniform=True)), lines

    # ---- an event: the scheduler decides who runs

    def step(self) -> StepTaken:
        """One step of whatever the scheduler chooses; somebody must be there."""
        scheduler, report = self.scheduler, self.report
        computed = [state.num_computed for state in scheduler.running]
        batch = scheduler.step()
        assert batch is not None
        if batch.preempted:
            self._book_preemptions(computed[-len(batch.preempted) :])
        n, samples, decodes = len(batch.entries), 0, 0
        num_tokens = kv_tokens = qk_pairs = 0
        for entry in batch.entries:
            query_len = entry.query_len
            context = entry.start + query_len
            num_tokens += query_len
            kv_tokens += context
            qk_pairs += query_len * context - query_len * (query_len - 1) // 2
            samples += entry.samples
            decodes += not entry.is_prefill
        uniform = decodes == n
        descriptor = self.dispatcher.dispatch(n, num_tokens, 1 if uniform else None)
        us = self.costs.itl_us(*padded_step(descriptor, n, kv_tokens, qk_pairs))
        self.now_us += us
        if self.paused_us:
            decodes -= self._book_pauses(batch)
        if decodes:
            report.itl.add(us, decodes)
        count = report.count_of(Ran(descriptor, num_tokens, uniform))
        report.book_steps(count, 1, us, kv_tokens, scheduler.pool.num_free)
        ended = self._sample(batch)
        # Who waits could not enter this step, and can enter no later one before somebody ends.
        stuck = uniform and not batch.preempted and not ended
        self.settled = samples == n and (stuck or not scheduler.waiting)
        return StepTaken(batch, descriptor)

    def _book_preemptions(self, computed: list[int]) -> None:
        """The youngest running requests stand in front of the waiting line again, the oldest of
        them first; `computed` were their tokens in the cache."""
        for state, tokens in zip(self.scheduler.waiting, computed, strict=False):
            self.report.preemptions += 1
            self.report.recomputed_tokens += tokens
            if state.output:
                self.paused_us.setdefault(state.request.request_id, self.now_us)

    def _book_pauses(self, batch: ScheduledBatch) -> int:
        """Books how long decodes and resumed prompts waited between two tokens, and counts the
        decodes."""
        decodes = 0
        for entry in batch.entries:
            if entry.samples and entry.request.request_id in self.paused_us:
                self.report.itl.add(self.now_us - self.paused_us.pop(entry.request.request_id))
                decodes += not entry.is_prefill
        return decodes

    def _sample(self, batch: ScheduledBatch) -> bool:
        """End the step: tokens for all that sample; who has the last of its tokens leaves."""
        sampling = [entry.state for entry in batch.entries if entry.samples]
        for state in sampling:
            if not state.output:
                self.first_token_us.setdefault(state.request.request_id, self.now_us)
        tokens = [self._token(s.request) for s in sampling] if self.sharing else [0] * len(sampling)
        _, ended = self.scheduler.update(batch, tokens)
        for state in ended:
            request = state.request
            first_us = self.first_token_us[request.request_id]
            self._leave(state)
            served = Served(int(request.request_id), request.arrival_us, first_us, self.now_us)
            self.report.book_served(served, request.max_new_tokens)
            if self.on_served:
                self.on_served(served)
        return bool(ended)

    def _leave(self, state: RequestState) -> None:
        request = state.request
        self.outstanding -= len(request.prompt) + request.max_new_tokens
        self.first_token_us.pop(request.request_id, None)
        self.paused_us.pop(request.request_id, None)

    # ---- between two events: all running requests decode, and nobody enters

    def stride(self, until_us: float) -> bool:
        """Decode steps that begin before `until_us`, until a request ends or blocks run out; False
        if they have."""
        scheduler, report, running = self.scheduler, self.report, self.scheduler.running
        n = len(running)
        to_end = min([state.request.max_new_tokens - len(state.output) for state in running])
        at_most = self._steps_with_blocks(to_end)
        if at_most == 0:
            return False
        count, lines = self.decode(n)
        kv_tokens = n + sum([state.num_computed for state in running])
        ramps = ramps_of([(us + key * kv_tokens, key * n) for us, key in lines], at_most)
        if until_us < math.inf:
            ramps = begun_before(until_us - self.now_us, ramps)
        steps, us = 0, 0.0
        for ramp in ramps:
            steps += ramp.steps
            us += ramp.total_us(ramp.steps)
            report.itl.add_ramp(*ramp, weight=n)
        self.now_us += us
        # The step in which a request ends is the scheduler's.
        ends = steps == to_end
        if alone := steps - ends:
            allocate = scheduler.pool.allocate
            for state in running:
                state.output += [self._token(state.request)] * alone
                state.num_computed += alone
                allocate(state.request.request_id, state.num_computed)
        batch = scheduler.step() if ends else None
        kv_tokens = kv_tokens * steps + n * (steps * (steps - 1) // 2)
        report.book_steps(count, steps, us, kv_tokens, scheduler.pool.num_free)
        if batch:
            self._sample(batch)
            self.settled = not scheduler.waiting
        return True

    def _steps_with_blocks(self, most: int) -> int:
        """How many of the next `most` decode steps the free blocks suffice for."""
        pool, running = self.scheduler.pool, self.scheduler.running
        if (most // pool.block_size + 1) * len(running) <= pool.num_free:
            return most

        def blocks(steps: int) -> int:
            cached = [state.num_computed for state in running]
            return sum(pool.blocks_for(c + steps) - pool.blocks_for(c) for c in cached)

        return bisect_right(range(1, most + 1), pool.num_free, key=blocks)

    def _token(self, request: Request) -> int:
        """What a request writes, again and again. In a prefix cache no other text may have it."""
        return (int(request.request_id) + 1) * OWN_TOKENS - 1 if self.sharing else 0


class RealTime:
    """A `Replica` on the wall's clock, for one thread: each step ends when it is predicted to. What
    Python and too long a sleep add to one step is caught up in the next. Ids are numbers."""

    def __init__(self, replica: Replica) -> None:
        self.replica, self.scheduler, self.cancel = replica, replica.scheduler, replica.cancel
        self._began = time.perf_counter()

    @property
    def now_us(self) -> float:
        return (time.perf_counter() - self._began) * 1e6

    def submit(self, request: Request) -> None:
        """Raises ValueError as `Replica.enter` does."""
        self.replica.enter(request, self.now_us)

    def step(self) -> StepTaken | None:
        """None: nobody is there."""
        if not self.scheduler.has_unfinished:
            return None
        done = self.replica.step()
        time.sleep(max(0.0, self.replica.now_us - self.now_us) / 1e6)
        return done


class Ramp(NamedTuple):
    """Steps of first_us, first_us + growth_us, …, `steps` of them: at least one."""

    first_us: float
    growth_us: float
    steps: int

    def total_us(self, steps: int) -> float:
        return steps * self.first_us + self.growth_us * (steps * (steps - 1) // 2)


def ramps_of(lines: Sequence[Line], steps: int) -> list[Ramp]:
    """The highest line of each of `steps` steps (1 or more), as ramps one after another. A line is
    (us of the first step, growth per step), both 0 or more."""
    if len(lines) == 1:
        return [Ramp(*lines[0], steps)]
    ramps: list[Ramp] = []
    done = 0
    while done < steps:
        # Of equally high lines the steepest: it is the highest from the next step on.
        first, growth = max((us + done * rise, rise) for us, rise in lines)
        until = steps
        for us, rise in lines:
            if rise > growth:  # lower now, and higher one day
                catches_up = done + (first - us - done * rise) / (rise - growth)
                until = min(until, max(done, math.floor(catches_up)) + 1)
        ramps.append(Ramp(first, growth, until - done))
        done = until
    return ramps


def begun_before(us: float, ramps: Iterable[Ramp]) -> list[Ramp]:
    """The steps that begin before `us` has passed: one at least."""
    begun: list[Ramp] = []
    for ramp in ramps:
        if begun and us <= 0:
            break
        # the step in which the moment lies, and all before it
        steps = 1 + bisect_left(range(1, ramp.steps), us, key=ramp.total_us)
        begun.append(Ramp(ramp.first_us, ramp.growth_us, steps))
        us -= ramp.total_us(steps)
    return begun
