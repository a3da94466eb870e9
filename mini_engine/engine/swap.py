"""Preempt by swap: a preempted request's K and V wait in host memory instead of being recomputed.

Everything else is as in `scheduler.Scheduler`, which decides who is preempted and who is admitted:

1. A preempted request keeps what it has computed, in as many host blocks as it had full or partly
   full. Where so many are not free, or by "cheaper" where copying saves no time, it is preempted by
   recompute.
2. It waits at the front of the line, and is admitted by the same rules. Its blocks come back in
   that step, and it goes on where it stopped: as a decode, if it was one.
3. Blocks that come back are its own and have no key: with a prefix cache it shares none of them.
   Those that it left keep their keys until they are handed out.

A step that preempts admits nobody, so no batch has copies both out and in."""

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.scheduler import Scheduler

SavesUs = Callable[[int], float]


class Parked(NamedTuple):
    host_blocks: tuple[int, ...]  # in order of position
    num_prefill: int  # as it was: below it the request is in the middle of its prompt


class SwappingScheduler(Scheduler):
    """A Scheduler that preempts by swap where it can, and where it pays if it is to ask."""

    def __init__(self, limits: SchedulerLimits, saves_us: SavesUs | None = None) -> None:
        """`saves_us`: what copying a request with so many computed tokens out and in saves against
        computing them again; "cheaper" copies where that is above 0, and needs it."""
        super().__init__(limits)
        if limits.preemption == "cheaper" and saves_us is None:
            raise ValueError("preemption 'cheaper' needs saves_us (serving.swap_cost.SwapCost)")
        self._saves_us = saves_us if limits.preemption == "cheaper" else None
        self.free_host = list(range(limits.host_blocks - 1, -1, -1))  # a stack of host blocks
        self._parked: dict[str, Parked] = {}
        self._outs: list[tuple[int, int]] = []  # of the step that is being scheduled
        self._ins: list[tuple[int, int]] = []

    def receive(self, request_id: str) -> None:
        """Of the request that was submitted last: another server has computed its prompt, all but
        the last token, and its K and V arrive in the blocks that it gets when it is admitted."""
        state = self.waiting[-1]
        state.num_computed = len(state.request.prompt) - 1
        self._parked[request_id] = Parked((), 0)

    def cancel(self, request_id: str) -> RequestState | None:
        if parked := self._parked.pop(request_id, None):
            self.free_host += parked.host_blocks
        return super().cancel(request_id)

    def step(self) -> ScheduledBatch | None:
        self._outs, self._ins = [], []
        batch = super().step()
        return batch and replace(batch, swap_out=tuple(self._outs), swap_in=tuple(self._ins))

    def _preempt_youngest(self) -> Request:
        """As in Scheduler; but what is parked stays computed."""
        state = self.running[-1]
        computed, parked = state.num_computed, self._park(state)
        request = super()._preempt_youngest()
        if parked:
            state.num_computed = computed
        return request

    def _park(self, state: RequestState) -> bool:
        """Note the copies of its blocks into free host blocks; False if it is to be recomputed."""
        if not self.limits.host_blocks:
            return False
        request_id, computed = state.request.request_id, state.num_computed
        table = self.pool.block_table(request_id)[: self.pool.blocks_for(computed)]
        if len(table) > len(self.free_host):
            return False
        if self._saves_us and self._saves_us(computed) <= 0:
            return False
        host = tuple(self.free_host.pop() for _ in table)
        self._outs += zip(table, host, strict=True)
        self._parked[request_id] = Parked(host, state.num_prefill)
        return True

    def _admit(self, state: RequestState, budget: int) -> ScheduledRequest | None:
        """As in Scheduler; a parked request gets blocks, and its K and V back."""
        parked = self._parked.get(state.request.request_id)
        if parked is None:
            return super()._admit(state, budget)
        state.num_prefill = parked.num_prefill
        entry = self._try_schedule(state, budget) if self._may_enter(state) else None
        if entry is not None:
            self._ins += zip(entry.block_table, parked.host_blocks, strict=False)
            self.free_host += parked.host_blocks
            del self._parked[state.request.request_id]
        return entry


def scheduler_for(limits: SchedulerLimits, saves_us: SavesUs | None = None) -> Scheduler:
    if limits.preemption == "recompute":
        return Scheduler(limits)
    return SwappingScheduler(limits, saves_us)
