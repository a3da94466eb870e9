"""Which requests run in this step, and how many tokens of each.

The rules are those of vLLM 0.33's synchronous scheduler (vllm/v1/core/sched/scheduler.py,
`Scheduler.schedule`), step by step and block by block; tests/engine/test_as_vllm.py compares them:

1. Each step has one token budget for prefill and decode together; there are no phases. A request
   has computed `num_computed` of its `num_tokens` known tokens and gets the rest, or as much of it
   as the budget allows. Decode is the case in which 1 token is missing.
2. Running requests come first, oldest first; then waiting ones, first come, first served.
3. A prompt longer than the budget is prefilled in chunks (chunked prefill, always on).
4. A waiting request is admitted when blocks for *all* its known tokens are free, even if this step
   computes only a chunk of them. It still takes blocks for the chunk alone. (With
   `reserve_full_isl=False` blocks for the chunk are enough.)
5. When blocks run out, the youngest running request is preempted: its blocks are freed and it goes
   to the *front* of the waiting line. All its tokens, generated ones included, are computed again
   later. A step that preempts a request admits none.
6. With `prefix_caching`, tokens at the beginning of a waiting request that the cache holds already
   (`prefix_cache.SharingPool`) count as computed when it is admitted. So do those whose K and V
   another server sends.

Only the number of tokens matters, never their values, unless prefixes are cached. Two invariants
follow: the running list is always in order of arrival, and at most one running request, the last,
is in the middle of its prompt, since a partial chunk takes the whole rest of the budget."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice

from mini_engine.engine.batch import (
    Request,
    RequestState,
    ScheduledBatch,
    ScheduledRequest,
    SchedulerLimits,
)
from mini_engine.engine.blocks import BlockPool, OutOfBlocks
from mini_engine.engine.prefix_cache import Hits, SharingPool


class Scheduler:
    """Continuous batching over one block pool: call `step()`, run the batch, call `update()`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        sizes = limits.num_blocks, limits.block_size
        self.prefix_cache = SharingPool(*sizes) if limits.prefix_caching else None
        self.pool = self.prefix_cache or BlockPool(*sizes)
        self.first_hits, self.resumed_hits = Hits(), Hits()  # of the prefix cache
        self.drafts = Hits()  # how many were checked, and how many were right
        self.waiting: deque[RequestState] = deque()
        self.running: list[RequestState] = []
        self._ids: set[str] = set()  # of waiting and running requests

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request, num_computed: int = 0) -> None:
        """Put the request at the end of the waiting line. A text ends at max_model_len tokens.
        `num_computed`: of so many first tokens K and V come from another server, into the blocks
        that it gets. Raises ValueError if it could never be served, or its id is in use."""
        self.limits.check(request)
        if request.request_id in self._ids:
            raise ValueError(f"request {request.request_id!r} is being served: use another id")
        self._ids.add(request.request_id)
        room = self.limits.max_model_len - len(request.prompt)
        if request.max_new_tokens > room:
            request = replace(request, max_new_tokens=room)
        self.waiting.append(RequestState(request, num_computed=num_computed))

    def cancel(self, request_id: str) -> RequestState | None:
        """Forget a request between two steps: its blocks are free for the next. Returns its state;
        None where no request of this id is waiting or running."""
        for line in (self.running, self.waiting):
            for state in line:
                if state.request.request_id == request_id:
                    line.remove(state)
                    self._ids.remove(request_id)
                    self.pool.forget(request_id)
                    return state
        return None

    def step(self) -> ScheduledBatch | None:
        """Choose the next batch; None if nothing is left to do."""
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        budget = self._schedule_running(scheduled, preempted)
        if not preempted:
            self._schedule_waiting(scheduled, budget)
        if not scheduled:
            return None
        return ScheduledBatch(tuple(scheduled), tuple(preempted))

    def update(
        self, batch: ScheduledBatch, tokens: Sequence[int]
    ) -> tuple[list[tuple[RequestState, int]], list[RequestState]]:
        """Record what the step did. `tokens`: the sampled ones, step by step, and in each step one
        for every entry that samples, and one for each of its drafts. Returns the tokens that count,
        each with its request, in the same order, and the requests that have ended; their blocks are
        free. A token behind the end of its request does not count, and none behind a draft that was
        wrong. Raises ValueError for another number of tokens; nothing has changed then."""
        sampling = [entry for entry in batch.entries if entry.samples]
        if len(tokens) != batch.steps * sum(entry.num_sampled for entry in sampling):
            raise ValueError(
                f"{len(tokens)} tokens for {len(sampling)} entries in {batch.steps} steps"
            )
        for entry in batch.entries:
            entry.state.num_computed += entry.query_len - entry.num_sampled
        written: list[tuple[RequestState, int]] = []
        drawn = iter(tokens)
        for entry in sampling * batch.steps:
            state = entry.state
            confirmed: Sequence[int] = [*islice(drawn, 1 + len(entry.drafts))]
            if entry.drafts:
                confirmed = entry.confirmed(confirmed)
                self.drafts.asked += len(entry.drafts)
                self.drafts.hit += len(confirmed) - 1
            for token in confirmed:
                if state.finish_reason is None:
                    state.num_computed += 1
                    state.output.append(token)
                    state.finish_reason = state.request.ends_with(token, len(state.output))
                    written.append((state, token))
        finished = [entry.state for entry in sampling if entry.state.finish_reason]
        for state in finished:
            self.pool.free(state.request.request_id)
            self._ids.remove(state.request.request_id)
        if finished:
            self.running = [state for state in self.running if not state.finish_reason]
        return written, finished

    def for_steps(self, batch: ScheduledBatch, steps: int) -> ScheduledBatch:
        """A batch of decodes as one of `steps` decode steps, with blocks for what they will keep.
        It stays as it is where some entry is no decode, where no request wants so many tokens, and
        where blocks are short: nobody is preempted for steps that are only hoped for."""
        wanted = [min(steps, e.request.max_new_tokens - len(e.state.output)) for e in batch.entries]
        if batch.has_prefill or max(wanted) < steps:
            return batch
        # The last token that is sampled needs no slot, so n steps take n slots from `start` on.
        ends = [entry.start + n for entry, n in zip(batch.entries, wanted, strict=True)]
        missing = sum(
            self.pool.blocks_for(end) - len(entry.block_table)
            for entry, end in zip(batch.entries, ends, strict=True)
        )
        if missing > self.pool.num_free:
            return batch
        entries = tuple(
            entry._replace(block_table=self.pool.allocate(entry.request.request_id, end))
            for entry, end in zip(batch.entries, ends, strict=True)
        )
        return replace(batch, entries=entries, steps=steps)

    def for_drafts(self, batch: ScheduledBatch) -> ScheduledBatch:
        """The batch with room behind each decode for drafts, as many as the limits say, and their
        values still to come (`drafts`). They take what is left of the budget and of the free
        blocks: nobody waits and nobody is preempted for tokens that are only hoped for. The last
        token that a request may write is never drafted: there would be nothing to check after it.
        """
        budget = self.limits.max_num_batched_tokens - batch.num_tokens
        entries = list(batch.entries)
        for row, entry in enumerate(entries):
            request, left = entry.request, entry.request.max_new_tokens - len(entry.state.output)
            count = min(self.limits.num_speculative_tokens, left - 1, budget)
            end = entry.context_len + count
            if entry.is_prefill or not self.pool.has_room(request.request_id, end):
                continue
            budget -= count
            table = self.pool.allocate(request.request_id, end)
            entries[row] = entry._replace(query_len=entry.query_len + count, block_table=table)
        return replace(batch, entries=tuple(entries))

    def _schedule_running(self, scheduled: list[ScheduledRequest], preempted: list[Request]) -> int:
        """Give each running request its tokens, oldest first; return the remaining budget. Appends
        to `scheduled` until the budget, at first max_num_batched_tokens, is spent. While blocks are
        short for a request, the youngest is preempted (appended to `preempted`) and the request
        tries again, unless it was the youngest itself. `self.running` is in order of arrival."""
        budget = self.limits.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            state = self.running[index]
            entry = self._try_schedule(state, budget)
            if entry is None:
                # `state` may be the youngest itself; then the loop ends.
                preempted.append(self._preempt_youngest())
                continue
            scheduled.append(entry)
            budget -= entry.query_len
            index += 1
        return budget

    def _schedule_waiting(self, scheduled: list[ScheduledRequest], budget: int) -> None:
        """Admit requests from the front of the waiting line while budget and blocks last. At most
        max_num_seqs requests run at once. An admitted request moves from `self.waiting` to the end
        of `self.running` and is appended to `scheduled`; its num_prefill becomes the number of its
        known tokens, generated ones included. Admission stops at the first request that has to wait
        for blocks (`_admit`), even if a later one would fit."""
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            state = self.waiting[0]
            state.num_prefill = state.num_tokens
            entry = self._admit(state, budget)
            if entry is None:
                return
            self.running.append(self.waiting.popleft())
            scheduled.append(entry)
            budget -= entry.query_len

    def _admit(self, state: RequestState, budget: int) -> ScheduledRequest | None:
        """The first share of a waiting request; None, and no block taken, while it has to wait."""
        if state.num_computed:  # by another server: it only decodes
            state.num_prefill = 0
        if self.prefix_cache is None or state.num_computed:
            return self._try_schedule(state, budget) if self._may_enter(state) else None
        state.num_computed = self.prefix_cache.look_up(state.request.request_id, state)
        entry = self._try_schedule(state, budget) if self._may_enter(state) else None
        if entry is None:
            state.num_computed = 0
        else:
            hits = self.resumed_hits if state.num_preemptions else self.first_hits
            hits.asked += state.num_tokens
            hits.hit += state.num_computed
        return entry

    def _may_enter(self, state: RequestState) -> bool:
        """Whether a waiting request may be admitted, if the blocks for its first chunk are free.
        With `limits.reserve_full_isl`: only if there is room for all its known tokens, or a long
        prompt would enter for the sake of its first chunk and be preempted before its last."""
        if not self.limits.reserve_full_isl:
            return True
        return self.pool.has_room(state.request.request_id, state.num_tokens)

    def _try_schedule(self, state: RequestState, budget: int) -> ScheduledRequest | None:
        """The request's next tokens, with blocks to hold them; None if blocks are short. It gets
        its known tokens that are not computed yet, at most `budget` (1 or more) of them, and blocks
        for all tokens up to these, but none for later ones. For the fields of the result see
        `ScheduledRequest`. If blocks are short, nothing has changed."""
        start = state.num_computed
        query_len = min(state.num_tokens - start, budget)
        try:
            table = self.pool.allocate(state.request.request_id, start + query_len)
        except OutOfBlocks:
            return None
        return ScheduledRequest(
            state=state,
            start=start,
            query_len=query_len,
            block_table=table,
            is_prefill=start < state.num_prefill,
            samples=start + query_len == state.num_tokens,
        )

    def _preempt_youngest(self) -> Request:
        """Free all blocks of the youngest running request, and return the request. It goes to the
        front of the waiting line and keeps its generated tokens, but none of its tokens counts as
        computed any more. num_preemptions goes up by one."""
        state = self.running.pop()
        self.pool.free(state.request.request_id)
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
