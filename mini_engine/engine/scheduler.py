"""Which requests run in this step, and how many tokens of each.

In:  requests (`submit`), and after each step the tokens that were sampled (`update`).
Out: `step()` gives a ScheduledBatch: for each request in it, where its new tokens start,
     how many there are, and the block table that says where their K and V go.

The rules are those of vLLM V1's scheduler (vllm/v1/core/sched/scheduler.py, `Scheduler.schedule`):

1. One token budget a step, shared by prefill and decode. There is no prefill phase and no decode
   phase: a request has `num_computed` tokens done of `num_tokens` known, and gets the difference,
   as far as the budget goes. Decode is the case where the difference is 1.
2. Running requests come first, oldest first; then waiting ones, first come first served.
3. A prompt longer than the budget is prefilled in chunks (chunked prefill, always on).
4. When blocks run out, the youngest running request is preempted: its blocks are freed, it goes
   to the *front* of the waiting line, and everything it had is computed again later, its own
   generated tokens included. A step that preempted admits nobody.

Only counts are looked at, never token values, so a prompt may be `range(4096)`: that is how
`serve` replays a million requests. Two consequences are worth knowing. The order of the running
list is the order of arrival, always. And at most one running request is in the middle of its
prompt, and it is the last: a chunk that stopped short took the whole budget.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from mini_engine.engine.blocks import BlockPool, OutOfBlocks


@dataclass(frozen=True)
class Request:
    """What a user asks for. Never changes, so the same one can be run again in another mode."""

    request_id: str
    prompt: Sequence[int]  # token ids
    max_new_tokens: int
    arrival_us: float = 0.0
    eos_ids: Collection[int] = ()  # sampling one of these ends the request


@dataclass(frozen=True)
class SchedulerLimits:
    """The sizes that bound a batch. `num_blocks` counts the null block."""

    max_num_seqs: int
    max_num_batched_tokens: int
    num_blocks: int
    block_size: int
    max_model_len: int

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
        # The last token is sampled and never fed back, so it needs no place.
        needed = -(-(num_prompt + max_new - 1) // self.block_size)
        if needed > self.num_blocks - 1:
            raise ValueError(
                f"{size} needs {needed} blocks of {self.block_size}, and the cache has "
                f"{self.num_blocks - 1} beside the null block: add blocks or ask for less"
            )


@dataclass(eq=False, slots=True)
class RequestState:
    """How far a request has come. The scheduler owns it; runners only read it."""

    request: Request
    output: list[int] = field(default_factory=list)  # tokens generated so far
    num_computed: int = 0  # tokens whose K and V are in the cache
    num_prefill: int = 0  # tokens known when it was last admitted; below this it prefills
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
    is_prefill: bool  # not past the tokens it was admitted with: a chunk, even one of length 1
    samples: bool  # reaches the last known token, so its last row gives the next one

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
    """One step's work, in order of arrival. That puts decodes first and prefill chunks last."""

    entries: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()  # sent back to the waiting line by this step

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
        """Tokens that each request attends to: those before this step and its own."""
        return tuple(entry.context_len for entry in self.entries)

    @property
    def has_prefill(self) -> bool:
        return any(entry.is_prefill for entry in self.entries)


class Scheduler:
    """Continuous batching over one block pool. `step()`, run it, `update()`, and again."""

    def __init__(self, limits: SchedulerLimits) -> None:
        self.limits = limits
        self.pool = BlockPool(limits.num_blocks, limits.block_size)
        self.waiting: deque[RequestState] = deque()
        self.running: list[RequestState] = []
        self._live: set[str] = set()

    @property
    def has_unfinished(self) -> bool:
        return bool(self.waiting or self.running)

    def submit(self, request: Request) -> None:
        """Put the request at the end of the waiting line.

        Raises:
            ValueError: it could never be served (`SchedulerLimits.check`), or its id is in use.
        """
        self.limits.check(request)
        if request.request_id in self._live:
            raise ValueError(
                f"request {request.request_id!r} is being served: give each request its own id"
            )
        self._live.add(request.request_id)
        self.waiting.append(RequestState(request))

    def step(self) -> ScheduledBatch | None:
        """Choose the next batch; None when nothing is left to do."""
        scheduled: list[ScheduledRequest] = []
        preempted: list[Request] = []
        budget = self._schedule_running(scheduled, preempted)
        if not preempted:
            self._schedule_waiting(scheduled, budget)
        if not scheduled:
            return None
        return ScheduledBatch(tuple(scheduled), tuple(preempted))

    def update(self, batch: ScheduledBatch, tokens: Sequence[int]) -> list[RequestState]:
        """Book what the step did; `tokens` are the sampled ones, in order of the entries.

        Returns the requests that ended here, their blocks already free.
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
            self._live.remove(state.request.request_id)
        if finished:
            self.running = [state for state in self.running if not state.finish_reason]
        return finished

    def _schedule_running(self, scheduled: list[ScheduledRequest], preempted: list[Request]) -> int:
        """Give each running request its tokens, oldest first; returns the budget that is left.

        Appends to `scheduled` until the budget, max_num_batched_tokens to begin with, is spent.
        Whoever finds no blocks tries again after each preemption (appended to `preempted`), until
        there are enough or the victim was itself. `self.running` is in order of arrival.
        """
        budget = self.limits.max_num_batched_tokens
        index = 0
        while index < len(self.running) and budget > 0:
            state = self.running[index]
            entry = self._try_schedule(state, budget)
            if entry is None:
                # The victim may be `state` itself, when no one younger is left: the loop then ends.
                preempted.append(self._preempt_youngest())
                continue
            scheduled.append(entry)
            budget -= entry.query_len
            index += 1
        return budget

    def _schedule_waiting(self, scheduled: list[ScheduledRequest], budget: int) -> None:
        """Admit from the front of the line while budget, seats and blocks last.

        Whoever is admitted leaves `self.waiting`, joins `self.running` at its end and is appended
        to `scheduled`; its num_prefill is what is known of it now, generated tokens included. The
        first who finds no blocks ends it: nobody overtakes. There are max_num_seqs seats.
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
        """The request's next chunk with blocks to hold it; None when blocks are short.

        It gets the tokens that are known and not computed, at most `budget` (1 or more) of them,
        and blocks for these and all before them, none for later. The fields of the result are as
        `ScheduledRequest` says. Nothing has changed when blocks are short.
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
        """Take the youngest running request's memory, for good; returns the request.

        It gives all its blocks back and goes to the front of the waiting line. What it has
        generated stays; nothing of it is computed any more. num_preemptions counts it.
        """
        state = self.running.pop()
        self.pool.free(state.request.request_id)
        state.num_computed = 0
        state.num_preemptions += 1
        self.waiting.appendleft(state)
        return state.request
