"""Which requests run in this step, and how many tokens of each.

In:  requests (`submit`), and after each step the sampled tokens (`update`).
Out: `step()` returns a ScheduledBatch: for each request in it, where its new tokens start,
     how many there are, and the block table that says where their K and V go.

The rules are those of vLLM V1's scheduler (vllm/v1/core/sched/scheduler.py, `Scheduler.schedule`):

1. Each step has one token budget for prefill and decode together; there are no phases. A request
   has computed `num_computed` of its `num_tokens` known tokens and gets the rest, or as much of it
   as the budget allows. Decode is the case in which 1 token is missing.
2. Running requests come first, oldest first; then waiting ones, first come, first served.
3. A prompt longer than the budget is prefilled in chunks (chunked prefill, always on).
4. When blocks run out, the youngest running request is preempted: its blocks are freed and it goes
   to the *front* of the waiting line. All its tokens, generated ones included, are computed again
   later. A step that preempts a request admits none.

Only the number of tokens matters, never their values, so a prompt may be `range(4096)`. Two
invariants follow from the rules. The running list is always in order of arrival. And at most one
running request, the last, is in the middle of its prompt, since a partial chunk takes the whole
rest of the budget.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mini_engine.engine.blocks import BlockPool, OutOfBlocks


@dataclass(frozen=True)
class Request:
    """What a user asks for. It never changes, so it can be run again in another mode."""

    request_id: str
    prompt: Sequence[int]  # token ids
    max_new_tokens: int
    arrival_us: float = 0.0
    eos_ids: Collection[int] = ()  # sampling one of these ends the request


@dataclass(frozen=True)
class SchedulerLimits:
    """The sizes that bound a batch and its KV cache."""

    max_num_seqs: int  # running requests
    max_num_batched_tokens: int  # the token budget of a step
    num_blocks: int  # of the KV cache, the null block included
    block_size: int  # tokens in a block
    max_model_len: int  # tokens of a request, prompt and output

    def __post_init__(self) -> None:
        for name in ("max_num_seqs", "max_num_batched_tokens", "block_size", "max_model_len"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least 1")
        if self.num_blocks < 2:
            raise ValueError(f"num_blocks is {self.num_blocks}: block 0 is null, so at least 2")

    def check(self, request: Request) -> None:
        """Raise ValueError when the request could never be served, however long it waits."""
        what = f"request {request.request_id!r}"
        num_prompt, max_new = len(request.prompt), request.max_new_tokens
        if num_prompt < 1:
            raise ValueError(f"{what}: the prompt is empty: give at least one token")
        if max_new < 1:
            raise ValueError(f"{what}: max_new_tokens is {max_new}: ask for at least 1")
        size = f"{what}: prompt of {num_prompt} + max_new_tokens {max_new}"
        if num_prompt + max_new > self.max_model_len:
            raise ValueError(
                f"{size} > context of {self.max_model_len}: shorten the prompt or ask for less"
            )
        # The last token is sampled but never fed back, so its K and V need no slot.
        needed = -(-(num_prompt + max_new - 1) // self.block_size)
        if needed > self.num_blocks - 1:
            raise ValueError(
                f"{size} needs {needed} blocks of {self.block_size}, and the cache has "
                f"{self.num_blocks - 1} beside the null block: add blocks or ask for less"
            )


@dataclass(eq=False, slots=True)
class RequestState:
    """The progress of a request. The scheduler owns it; runners only read it."""

    request: Request
    output: list[int] = field(default_factory=list)  # tokens generated so far
    num_computed: int = 0  # tokens whose K and V are in the cache
    num_prefill: int = 0  # tokens known at its last admission; it prefills up to here
    num_preemptions: int = 0
    finish_reason: str | None = None  # "stop" | "length", None while it runs

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt) + len(self.output)

    def token_ids(self, start: int, stop: int) -> list[int]:
        """Known tokens at positions start .. stop - 1: prompt first, then output."""
        n = len(self.request.prompt)
        return [
            *self.request.prompt[start:stop],
            *self.output[max(start - n, 0) : max(stop - n, 0)],
        ]


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request's share of a step: positions start .. start + query_len - 1."""

    state: RequestState
    start: int  # = num_computed
    query_len: int
    block_table: tuple[int, ...]  # long enough for start + query_len tokens
    is_prefill: bool  # starts below num_prefill: a chunk, even if only one token long
    samples: bool  # includes the last known token, whose row gives the next one

    @property
    def request(self) -> Request:
        return self.state.request

    @property
    def context_len(self) -> int:
        return self.start + self.query_len

    @property
    def token_ids(self) -> list[int]:
        """The query_len input tokens."""
        return self.state.token_ids(self.start, self.context_len)


@dataclass(frozen=True)
class ScheduledBatch:
    """One step's work in order of arrival, which puts decodes first and prefill chunks last."""

    entries: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()  # by this step

    @property
    def num_reqs(self) -> int:
        return len(self.entries)

    @property
    def num_tokens(self) -> int:
        return sum(entry.query_len for entry in self.entries)

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(entry.query_len for entry in self.entries)

    @property
    def context_lens(self) -> tuple[int, ...]:
        """Tokens that each request attends to, those of this step included."""
        return tuple(entry.context_len for entry in self.entries)

    @property
    def has_prefill(self) -> bool:
        return any(entry.is_prefill for entry in self.entries)


class Scheduler:
    """Continuous batching over one block pool: call `step()`, run the batch, call `update()`."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self.waiting: deque[RequestState] = deque()
        self.running: list[RequestState] = []
        self._ids: set[str] = set()  # of waiting and running requests

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        """Put the request at the end of the waiting line.

        Raises:
            ValueError: it could never be served (`SchedulerLimits.check`), or its id is in use.
        """
        self.limits.check(request)
        if request.request_id in self._ids:
            raise ValueError(
                f"request {request.request_id!r} is being served: give each request its own id"
            )
        self._ids.add(request.request_id)
        self.waiting.append(RequestState(request))

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

    def update(self, batch: ScheduledBatch, tokens: Sequence[int]) -> list[RequestState]:
        """Record what the step did. `tokens` are the sampled ones, in order of the entries.

        Returns the requests that have ended; their blocks are free.
        """
        sampling = [entry.state for entry in batch.entries if entry.samples]
        if len(tokens) != len(sampling):
            raise ValueError(f"{len(tokens)} tokens for {len(sampling)} entries that sample")
        for entry in batch.entries:
            entry.state.num_computed += entry.query_len
        for state, token in zip(sampling, tokens, strict=True):
            state.output.append(token)
            if token in state.request.eos_ids:
                state.finish_reason = "stop"
            elif len(state.output) == state.request.max_new_tokens:
                state.finish_reason = "length"
        finished = [state for state in sampling if state.finish_reason]
        for state in finished:
            self.pool.free(state.request.request_id)
            self._ids.remove(state.request.request_id)
        if finished:
            self.running = [state for state in self.running if not state.finish_reason]
        return finished

    def _schedule_running(self, scheduled: list[ScheduledRequest], preempted: list[Request]) -> int:
        """Give each running request its tokens, oldest first; return the remaining budget.

        Appends to `scheduled` until the budget, at first max_num_batched_tokens, is spent. While
        blocks are short for a request, the youngest is preempted (appended to `preempted`) and the
        request tries again, unless it was the youngest itself. `self.running` is in order of
        arrival.
        """
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
        """Admit requests from the front of the waiting line while budget and blocks last.

        At most max_num_seqs requests run at once. An admitted request moves from `self.waiting` to
        the end of `self.running` and is appended to `scheduled`; its num_prefill becomes the number
        of its known tokens, generated ones included. Admission stops at the first request for
        which blocks are short, even if a later one would fit.
        """
        while self.waiting and budget > 0 and len(self.running) < self.limits.max_num_seqs:
            state = self.waiting[0]
            state.num_prefill = state.num_tokens
            entry = self._try_schedule(state, budget)
            if entry is None:
                return
            self.running.append(self.waiting.popleft())
            scheduled.append(entry)
            budget -= entry.query_len

    def _try_schedule(self, state: RequestState, budget: int) -> ScheduledRequest | None:
        """The request's next tokens, with blocks to hold them; None if blocks are short.

        It gets its known tokens that are not computed yet, at most `budget` (1 or more) of them,
        and blocks for all tokens up to these, but none for later ones. For the fields of the
        result see `ScheduledRequest`. If blocks are short, nothing has changed.
        """
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
        """Free all blocks of the youngest running request, and return the request.

        It goes to the front of the waiting line and keeps its generated tokens, but none of its
        tokens counts as computed any more. num_preemptions goes up by one.
        """
        state = self.running.pop()
        self.pool.free(state.request.request_id)
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
