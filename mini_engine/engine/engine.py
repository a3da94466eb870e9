"""Continuous batching: requests in, tokens out, over any runner.

In:  requests, each with the time at which it arrives.
Out: a Completion for each: its tokens, why it ended, and the time of every token.

In a step, data flows one way:

    Scheduler.step() -> batch -> GraphDispatcher.dispatch() -> descriptor
                     -> runner.execute(batch, descriptor) -> tokens -> Scheduler.update()

The engine knows no clock, no device and no model. The runner has all three: the simulated GPU,
a real one, or a fake in the tests.
"""

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher, uniform_token_count
from mini_engine.engine.scheduler import Request, RequestState, ScheduledBatch, SchedulerLimits
from mini_engine.engine.swap import SavesUs, scheduler_for


class Runner(Protocol):
    """What runs a batch: it owns the model, the KV cache and the clock."""

    @property
    def now_us(self) -> float:
        """The clock, simulated or real, in microseconds. It never runs backwards."""
        ...

    def wait_until(self, us: float) -> None:
        """Idle until the clock shows at least `us`: there is nothing to run before."""
        ...

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        """Run one step in the descriptor's mode, padded to descriptor.num_tokens.

        First come its copies, `swap_out` and `swap_in`. K and V of position p of entry e go to
        slot_of(e.block_table, p, block_size); padded rows write to the null block. Returns a token
        id for each entry that `samples`, in order.
        """
        ...


@dataclass(frozen=True)
class Completion:
    """One finished request. Times are the runner's, in microseconds."""

    request: Request
    tokens: tuple[int, ...]
    finish_reason: str  # "stop": sampled one of eos_ids | "length": max_new_tokens reached
    arrival_us: float
    token_times_us: tuple[float, ...]  # when each of tokens was known
    num_preemptions: int

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def ttft_us(self) -> float:
        """Time to first token, from arrival."""
        return self.token_times_us[0] - self.arrival_us

    @property
    def itls_us(self) -> tuple[float, ...]:
        """Inter-token latencies: one fewer than tokens."""
        times = self.token_times_us
        return tuple(after - before for before, after in pairwise(times))


@dataclass(frozen=True)
class StepRecord:
    """What one step did."""

    batch: ScheduledBatch
    descriptor: BatchDescriptor
    tokens: tuple[int, ...]  # one for each entry that samples
    began_us: float
    ended_us: float
    completions: tuple[Completion, ...]  # requests that ended in this step


class Engine:
    """Drives one runner: `run` serves a whole workload; `submit` and `step` go step by step."""

    def __init__(
        self,
        runner: Runner,
        limits: SchedulerLimits,
        dispatcher: GraphDispatcher,
        *,
        saves_us: SavesUs | None = None,
    ) -> None:
        """`saves_us`: what preempting by swap saves, for `preemption` "cheaper"."""
        self.runner = runner
        self.scheduler = scheduler_for(limits, saves_us)
        self.dispatcher = dispatcher
        self._times: dict[str, list[float]] = {}  # of the requests being served

    def submit(self, request: Request) -> None:
        """Put the request in the waiting line. Raises ValueError as `Scheduler.submit` does."""
        self.scheduler.submit(request)
        self._times[request.request_id] = []

    def step(self) -> StepRecord | None:
        """Run one batch; None when no request is waiting or running."""
        batch = self.scheduler.step()
        if batch is None:
            return None
        # A prefill chunk that happens to be one token long is no decode: has_prefill says so.
        uniform = uniform_token_count(batch.query_lens, has_prefill=batch.has_prefill)
        descriptor = self.dispatcher.dispatch(batch.num_reqs, batch.num_tokens, uniform)
        began_us = self.runner.now_us
        tokens = self.runner.execute(batch, descriptor)
        ended_us = self.runner.now_us
        for entry in batch.entries:
            if entry.samples:
                self._times[entry.request.request_id].append(ended_us)
        finished = self.scheduler.update(batch, tokens)
        completions = tuple(self._complete(state) for state in finished)
        return StepRecord(batch, descriptor, tuple(tokens), began_us, ended_us, completions)

    def run(
        self,
        requests: Iterable[Request],
        on_token: Callable[[Request, int], None] | None = None,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> list[Completion]:
        """Serve all requests, each from its arrival_us on. Completions come in the order they end.

        Raises ValueError before any runs if one could never be served, or two share an id.
        """
        arrivals = deque(sorted(requests, key=lambda request: request.arrival_us))
        for request in arrivals:
            self.scheduler.limits.check(request)
        if len({request.request_id for request in arrivals}) < len(arrivals):
            raise ValueError("two requests share an id: give each request its own")
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
                sampling = (entry.request for entry in record.batch.entries if entry.samples)
                for request, token in zip(sampling, record.tokens, strict=True):
                    on_token(request, token)
            if on_step:
                on_step(record)
        return completions

    def _complete(self, state: RequestState) -> Completion:
        assert state.finish_reason is not None
        return Completion(
            request=state.request,
            tokens=tuple(state.output),
            finish_reason=state.finish_reason,
            arrival_us=state.request.arrival_us,
            token_times_us=tuple(self._times.pop(state.request.request_id)),
            num_preemptions=state.num_preemptions,
        )
