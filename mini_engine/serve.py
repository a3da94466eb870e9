"""Replay a trace of requests on the step-cost model: what would this server have felt like?

In:  requests (arrival, prompt and output tokens), the cost of a step, the scheduler's limits and
     the dispatcher that picks a graph for each batch.
Out: a ServeReport: TTFT, ITL, throughput, padding waste, steps per mode and rung.

The rules are those of `scheduler.Scheduler`, exactly: `serve_reference` drives the real one step
by step, and the tests hold the two equal. But until a request arrives, ends or finds no block, the
batch stays as it is, and all those steps are taken in one **stride**: what they do to the requests
is counted by `decode_clock.DecodeClock`, and the time that they take is a closed form
(`stride.Stride`). So a decode step is free, and memory does not grow with steps. What costs is a
chunk of a prompt, an arrival, an ending, a preemption.
"""

from collections import deque
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Protocol

from mini_engine.decode_clock import DecodeClock, Live
from mini_engine.dispatch import BatchDescriptor, GraphDispatcher
from mini_engine.modes import CUDAGraphMode
from mini_engine.oplists import StepShape
from mini_engine.request_trace import TraceRequest
from mini_engine.scheduler import SchedulerLimits
from mini_engine.serve_report import Served, ServeReport, Tally
from mini_engine.step_cost import Line, Mode
from mini_engine.stride import Stride

LAUNCHED: dict[CUDAGraphMode, Mode] = {
    CUDAGraphMode.NONE: "eager",
    CUDAGraphMode.PIECEWISE: "piecewise",
    CUDAGraphMode.FULL: "full",
}


class StepCosts(Protocol):
    """What a step costs; `step_cost.StepModel` is one."""

    def itl_us(self, mode: Mode, shape: StepShape) -> float:
        """Time of one step."""
        ...

    def lines(self, mode: Mode, num_tokens: int, num_reqs: int) -> tuple[Line, ...]:
        """The same for decode: max over lines of us + us_per_key * kv_tokens."""
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
    server = _Server(requests, costs, limits, dispatcher, tally)
    while server.take_turn():
        if progress and tally.turns % 1024 == 0:
            progress(tally.read)
    return tally.report()


def padded_reqs(descriptor: BatchDescriptor, num_reqs: int) -> int:
    """Rows of logits: in a full graph the head is part of the graph, so they are padded too."""
    return descriptor.num_reqs or num_reqs


class _Server:
    """The scheduler's state, as counts. A turn is one step or one stride."""

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
        self.next = next(self.arrivals, None)  # nothing behind it is looked at
        self.preempted: deque[Live] = deque()  # wait in front of it
        self.decoding = DecodeClock(limits.block_size)
        self.partial: Live | None = None  # in the middle of its prompt; younger than all those
        self.free = limits.num_blocks - 1  # blocks
        self.most_reqs = min(limits.max_num_seqs, limits.max_num_batched_tokens)

        @lru_cache(maxsize=None)  # one entry for each batch size
        def decode_cost(num_reqs: int) -> tuple[BatchDescriptor, tuple[Line, ...]]:
            descriptor = dispatcher.dispatch(num_reqs, num_reqs, 1)
            rows, reqs = descriptor.num_tokens, padded_reqs(descriptor, num_reqs)
            return descriptor, costs.lines(LAUNCHED[descriptor.mode], rows, reqs)

        self.decode_cost = decode_cost

    def take_turn(self) -> bool:
        """Take as many steps as can be taken at once; False when all is done."""
        if not (self.decoding.requests or self.partial or self.preempted):
            if self.next is None:
                return False
            self.now_us = max(self.now_us, self.next.arrival_us)
        if self.partial or self._can_admit():
            self._mixed_step()
        else:
            self._decode()
        return True

    # ---- decodes only ----

    def _decode(self) -> None:
        """Decode until a request ends or may come in, or until blocks run out."""
        if self.decoding.blocks_taken(1) > self.free:
            self._preempt(self.decoding.blocks_taken(1))
            most = 1  # a step that preempted admits nobody; the next one may
        else:
            most = self.decoding.steps_with_blocks(self.free, self.decoding.steps_to_ending())
        n = len(self.decoding.requests)
        descriptor, lines = self.decode_cost(n)
        keys = self.decoding.kv_tokens
        stride = Stride([(us + per_key * keys, per_key * n) for us, per_key in lines], most)
        # Who has come and was not admitted waits for an ending, and so does the line behind him.
        if self.next and n < self.most_reqs and self._head() is None:
            stride.cut(self.next.arrival_us - self.now_us)
        self.free -= self.decoding.blocks_taken(stride.steps)
        self._advance(descriptor, n, stride)

    def _advance(self, descriptor: BatchDescriptor, rows: int, stride: Stride) -> None:
        """Let the steps of the stride pass."""
        self.now_us += stride.total_us
        self.tally.book_steps(
            descriptor, rows, len(self.decoding.requests), stride, self.free
        )
        for live in self.decoding.advance(stride.steps):
            self._end(live)

    def _end(self, live: Live) -> None:
        self.free += self._blocks(live.computed)
        served = Served(live.number, live.arrival_us, live.first_token_us, self.now_us)
        self.tally.book_served(served, live.output)

    def _preempt(self, needed: int) -> int:
        """Throw out the youngest until `needed` blocks, theirs not counted, are free."""
        ...
