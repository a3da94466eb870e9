"""The same simulation as `simulate.simulate`, one step at a time, with the engine's own Scheduler.

In and out: as `simulate.simulate`. It is slow and plain: the tests and the bench check the strides
against it.
"""

from collections import deque
from collections.abc import Callable, Iterable

from mini_engine.dispatch.dispatcher import GraphDispatcher, uniform_token_count
from mini_engine.engine.scheduler import Request, ScheduledBatch, Scheduler, SchedulerLimits
from mini_engine.predict.oplists import StepShape
from mini_engine.predict.step_cost import padded_step
from mini_engine.serving.report import Ran, Served, ServeReport, Tally
from mini_engine.serving.request_trace import TraceRequest
from mini_engine.serving.simulate import StepCosts
from mini_engine.serving.stride import Stride


def simulate_step_by_step(
    requests: Iterable[TraceRequest],
    costs: StepCosts,
    limits: SchedulerLimits,
    dispatcher: GraphDispatcher,
    *,
    on_served: Callable[[Served], None] | None = None,
) -> ServeReport:
    """As `simulate.simulate`, but step by step and with a block table for every request."""
    tally = Tally(limits, dispatcher, on_served)
    scheduler = Scheduler(limits)
    arrivals = deque(
        Request(str(number), range(r.prompt_tokens), r.output_tokens, r.arrival_us)
        for number, r in enumerate(tally.admissible(requests))
    )
    first_token_us: dict[str, float] = {}
    last_token_us: dict[str, float] = {}
    now_us = 0.0
    while arrivals or scheduler.has_unfinished:
        if not scheduler.has_unfinished:
            now_us = max(now_us, arrivals[0].arrival_us)
        while arrivals and arrivals[0].arrival_us <= now_us:
            scheduler.submit(arrivals.popleft())
        cached = {state.request.request_id: state.num_computed for state in scheduler.running}
        batch = scheduler.step()
        assert batch is not None
        for request in batch.preempted:
            tally.book_preemption(cached[request.request_id])
        began_us = now_us
        now_us += _book_step(tally, batch, costs, dispatcher, scheduler.pool.num_free)
        sampled = [entry.request.request_id for entry in batch.entries if entry.samples]
        for request_id in sampled:
            first_token_us.setdefault(request_id, now_us)
            # The tokens of a step's decodes were booked with the step.
            if last_token_us.get(request_id, began_us) != began_us:
                tally.itl.add(now_us - last_token_us[request_id])
            last_token_us[request_id] = now_us
        for state in scheduler.update(batch, [0] * len(sampled)):
            request = state.request
            number, first_us = int(request.request_id), first_token_us[request.request_id]
            served = Served(number, request.arrival_us, first_us, now_us)
            tally.book_served(served, request.max_new_tokens)
    return tally.report()


def _book_step(
    tally: Tally, batch: ScheduledBatch, costs: StepCosts, dispatcher: GraphDispatcher, free: int
) -> float:
    """Count one step; returns how long it takes, in us."""
    uniform = uniform_token_count(batch.query_lens, has_prefill=batch.has_prefill)
    descriptor = dispatcher.dispatch(batch.num_reqs, batch.num_tokens, uniform)
    real = StepShape.mixed(batch.query_lens, batch.context_lens)
    us = costs.itl_us(*padded_step(descriptor, batch.num_reqs, real.kv_tokens, real.qk_pairs))
    decodes = sum(not entry.is_prefill for entry in batch.entries)
    ran = Ran(descriptor, batch.num_tokens, uniform=not batch.has_prefill)
    tally.book_steps(ran, Stride([(us, 0.0)], 1), real.kv_tokens, decodes, free)
    return us
