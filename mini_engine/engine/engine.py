"""Continuous batching: requests in, tokens out, over any runner.

In a step, data flows one way:

    Scheduler.step() -> batch -> GraphDispatcher.dispatch() -> descriptor
                     -> runner.execute(batch, descriptor) -> tokens -> Scheduler.update()

A `Proposer` guesses what comes after the last known token of each decode, and the same step checks
it (speculation.py). With `limits.steps_per_replay` a batch of decodes that a full graph runs takes
several steps (`Scheduler.for_steps`). The engine knows no clock, no device and no model: the runner
has all three."""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.engine.batch import Request, ScheduledBatch, SchedulerLimits
from mini_engine.engine.scheduler import Scheduler


class Runner(Protocol):
    @property
    def now_us(self) -> float:
        """The clock, simulated or real, in µs. It never runs backwards."""

    def wait_until(self, us: float) -> None:
        """Idle until the clock shows at least `us`: there is nothing to run before."""

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """Run `batch.steps` steps in the descriptor's mode, padded to descriptor.num_tokens. K and
        V of position p of entry e go to slot_of(e.block_table, p, block_size); padded rows touch no
        request's slot. Returns a token id for each row that is sampled (`num_sampled`), in order,
        step after step. A runner whose graphs feed their tokens back to themselves also has
        `steps_of(descriptor)`: how many decode steps one replay runs. Only with such a runner is
        `batch.steps` above 1."""


class Proposer(Protocol):
    def propose(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The same batch with `drafts` filled in. `Scheduler.for_drafts` has made the room: an
        entry has room for `context_len - state.num_tokens` of them."""


@dataclass(frozen=True)
class Completion:
    """One finished request. Times are the runner's, in µs."""

    request: Request
    tokens: tuple[int, ...]
    finish_reason: str  # "stop": sampled one of eos_ids | "length": max_new_tokens reached
    token_times_us: tuple[float, ...]  # when each of tokens was known
    num_preemptions: int

    @property
    def request_id(self) -> str:
        return self.request.request_id


@dataclass(frozen=True)
class StepRecord:
    batch: ScheduledBatch
    descriptor: BatchDescriptor
    written: tuple[tuple[Request, int], ...]  # new tokens with whose they are, in order
    began_us: float
    ended_us: float
    completions: tuple[Completion, ...]  # requests that ended in this step


class Engine:
    """Drives one runner: `run` serves a whole workload; `submit` and `step` go step by step."""

    def __init__(
        self, runner: Runner, limits: SchedulerLimits, dispatcher: GraphDispatcher, *,
        proposer: Proposer | None = None,
    ) -> None:  # fmt: skip
        """Raises ValueError for limits of several steps a replay with a runner of single ones, and
        for limits with drafts without a `proposer`."""
        if limits.num_speculative_tokens and proposer is None:
            raise ValueError("num_speculative_tokens is set, and nothing proposes them")
        self.proposer = proposer
        self.runner = runner
        self.scheduler = Scheduler(limits)
        self._steps_of = getattr(runner, "steps_of", None) if limits.steps_per_replay > 1 else None
        if limits.steps_per_replay > 1 and self._steps_of is None:
            raise ValueError(f"steps_per_replay: a {type(runner).__name__} runs one step at a time")
        self.dispatcher = dispatcher
        self._times: dict[str, list[float]] = {}  # of the requests being served

    def submit(self, request: Request) -> None:
        """Put the request in the waiting line. Raises ValueError as `Scheduler.submit` does."""
        self.scheduler.submit(request)
        self._times[request.request_id] = []

    def cancel(self, request_id: str) -> bool:
        """Forget a request between two steps; False where it has ended."""
        self._times.pop(request_id, None)
        return self.scheduler.cancel(request_id) is not None

    def step(self) -> StepRecord | None:
        """Run one batch; None when no request is waiting or running."""
        batch = self.scheduler.step()
        if batch is None:
            return None
        if self.proposer:
            batch = self.proposer.propose(self.scheduler.for_drafts(batch))
        # A prefill chunk that happens to be one token long is no decode: has_prefill says so.
        uniform = uniform_token_count(batch.query_lens, has_prefill=batch.has_prefill)
        descriptor = self.dispatcher.dispatch(batch.num_reqs, batch.num_tokens, uniform)
        if self._steps_of and (steps := self._steps_of(descriptor)) > 1:
            batch = self.scheduler.for_steps(batch, steps)
        began_us = self.runner.now_us
        tokens = self.runner.execute(batch, descriptor)
        ended_us = self.runner.now_us
        kept, finished = self.scheduler.update(batch, tokens)
        written = tuple((state.request, token) for state, token in kept)
        for request, _ in written:
            self._times[request.request_id].append(ended_us)
        completions = tuple(
            Completion(
                state.request, tuple(state.output), str(state.finish_reason),
                tuple(self._times.pop(state.request.request_id)), state.num_preemptions,
            )
            for state in finished
        )  # fmt: skip
        return StepRecord(batch, descriptor, written, began_us, ended_us, completions)

    def run(
        self, requests: Iterable[Request], on_token: Callable[[Request, int], None] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> list[Completion]:  # fmt: skip
        """Serve all requests, each from its arrival_us on. Completions come in the order they end.
        Raises ValueError before any runs if one could never be served."""
        arrivals = deque(sorted(requests, key=lambda request: request.arrival_us))
        for request in arrivals:
            self.scheduler.limits.check(request)
        completions: list[Completion] = []
        while arrivals or self.scheduler.has_unfinished:
            if not self.scheduler.has_unfinished:
                self.runner.wait_until(arrivals[0].arrival_us)
            while arrivals and arrivals[0].arrival_us <= self.runner.now_us:
                self.submit(arrivals.popleft())
            record = self.step()
            if record is None:
                continue
            completions.extend(record.completions)
            if on_token:
                for request, token in record.written:
                    on_token(request, token)
            if on_step:
                on_step(record)
        return completions
