"""What goes into the scheduler and what comes out of it: requests, limits, batches."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from mini_engine.engine.sampling import GREEDY, SamplingParams


@dataclass(frozen=True)
class Request:
    """What a user asks for. It never changes, so it can be run again in another mode."""

    request_id: str
    prompt: Sequence[int]  # token ids
    max_new_tokens: int
    arrival_us: float = 0.0
    eos_ids: Collection[int] = ()  # sampling one of these ends the request
    sampling: SamplingParams = GREEDY

    def ends_with(self, token: int, num_output: int) -> str | None:
        """Why its `num_output`-th token is the last: "stop" or "length"; None if it is not."""
        if token in self.eos_ids:
            return "stop"
        return "length" if num_output == self.max_new_tokens else None


@dataclass(frozen=True)
class SchedulerLimits:
    """The sizes that bound a batch and its KV cache."""

    max_num_seqs: int  # running requests
    max_num_batched_tokens: int  # the token budget of a step
    num_blocks: int  # of the KV cache, the null block included
    block_size: int  # tokens in a block
    max_model_len: int  # tokens of a request, prompt and output; its text ends there
    reserve_full_isl: bool = True  # admit when all known tokens have room, not just a chunk
    prefix_caching: bool = False  # share blocks of equal prefixes
    steps_per_replay: int = 1  # decode steps of one launch, where the runner has graphs for it
    num_speculative_tokens: int = 0  # drafts of a decode, checked in its step (speculation.py)

    def __post_init__(self) -> None:
        least = {  # a step holds a token of each request, and block 0 is null
            "max_num_seqs": 1, "max_num_batched_tokens": max(self.max_num_seqs, 1),
            "num_blocks": 2, "block_size": 1, "max_model_len": 1, "steps_per_replay": 1,
            "num_speculative_tokens": 0,
        }  # fmt: skip
        for name, at_least in least.items():
            if getattr(self, name) < at_least:
                raise ValueError(f"{name} is {getattr(self, name)}: it must be at least {at_least}")
        drafts, steps = self.num_speculative_tokens, self.steps_per_replay
        if drafts and steps > 1:
            what = f"num_speculative_tokens {drafts} and steps_per_replay {steps}"
            raise ValueError(f"{what}: choose one of the two")

    @property
    def decode_query_len(self) -> int:
        """Tokens of a decode in one step: the last known one, and its drafts."""
        return 1 + self.num_speculative_tokens

    def check(self, request: Request) -> None:
        """Raise ValueError when the request could never be served, however long it waits."""
        num_prompt, max_new = len(request.prompt), request.max_new_tokens
        # The last token is sampled but never fed back, so its K and V need no slot.
        longest = min(num_prompt + max_new, self.max_model_len)
        needed = -(-(longest - 1) // self.block_size)
        size = f"prompt of {num_prompt} + max_new_tokens {max_new}"
        fault = ""
        if num_prompt < 1:
            fault = "the prompt is empty: give at least one token"
        elif max_new < 1:
            fault = f"max_new_tokens is {max_new}: ask for at least 1"
        elif num_prompt >= self.max_model_len:
            fault = f"{size} > context of {self.max_model_len}: shorten the prompt"
        elif needed > self.num_blocks - 1:
            blocks = (
                f"{needed} blocks of {self.block_size}, and the cache has {self.num_blocks - 1}"
            )
            fault = f"{size} needs {blocks} beside the null block: add blocks or ask for less"
        if fault:
            raise ValueError(f"request {request.request_id!r}: {fault}")


@dataclass(eq=False, slots=True)
class RequestState:
    """The progress of a request. The scheduler owns it; runners only read it."""

    request: Request
    output: list[int] = field(default_factory=list)  # tokens generated so far
    num_computed: int = 0  # tokens whose K and V are in the cache
    num_prefill: int = 0  # tokens known at its last admission; it prefills up to here
    num_preemptions: int = 0
    finish_reason: str | None = None  # "stop" | "length", None while it runs
    block_keys: list[bytes] = field(default_factory=list)  # only prefix_cache.py reads it

    @property
    def num_tokens(self) -> int:
        return len(self.request.prompt) + len(self.output)

    def token_ids(self, start: int, stop: int) -> list[int]:
        n = len(self.request.prompt)
        return [
            *self.request.prompt[start:stop],
            *self.output[max(start - n, 0) : max(stop - n, 0)],
        ]


class ScheduledRequest(NamedTuple):
    """One request's share of a step: positions start .. start + query_len - 1."""

    state: RequestState
    start: int  # = num_computed
    query_len: int
    block_table: tuple[int, ...]  # long enough for start + query_len tokens
    is_prefill: bool  # starts below num_prefill: a chunk, even if only one token long
    samples: bool  # includes the last known token, whose row gives the next one
    drafts: tuple[int, ...] = ()  # guesses that follow the last known token, in this step only

    @property
    def request(self) -> Request:
        return self.state.request

    @property
    def context_len(self) -> int:
        return self.start + self.query_len

    @property
    def token_ids(self) -> list[int]:
        """The query_len input tokens."""
        return [*self.state.token_ids(self.start, self.context_len), *self.drafts]

    @property
    def num_sampled(self) -> int:
        """Its last rows whose logits are sampled: that of the last known token, and its drafts'."""
        return 1 + len(self.drafts) if self.samples else 0

    def confirmed(self, drawn: Sequence[int]) -> Sequence[int]:
        """Of the tokens drawn at its sampled rows, those that count: as long as each draft is what
        was drawn before it, and the first that is not."""
        pairs = enumerate(zip(self.drafts, drawn, strict=False))
        right = next((i for i, (draft, token) in pairs if draft != token), len(self.drafts))
        return drawn[: right + 1]


@dataclass(frozen=True)
class ScheduledBatch:
    """One step's work. Entries stand in order of arrival: decodes first, then prefill chunks, and
    perhaps behind an older chunk a decode whose K and V come from another server."""

    entries: tuple[ScheduledRequest, ...]
    preempted: tuple[Request, ...] = ()  # by this step
    steps: int = 1  # decode steps at once: each entry samples one token in each

    @property
    def num_reqs(self) -> int:
        return len(self.entries)

    @property
    def num_tokens(self) -> int:
        return sum(entry.query_len for entry in self.entries)

    @property
    def query_lens(self) -> tuple[int, ...]:
        return tuple(entry.query_len for entry in self.entries)

    def sampled_rows(self, width: int) -> list[int]:
        """Where the tokens that were sampled stand, if each entry has `width` rows for them."""
        counts = enumerate(entry.num_sampled for entry in self.entries)
        return [first * width + i for first, count in counts for i in range(count)]

    @property
    def context_lens(self) -> tuple[int, ...]:
        """Tokens that each request attends to, those of this step included."""
        return tuple(entry.context_len for entry in self.entries)

    @property
    def has_prefill(self) -> bool:
        return any(entry.is_prefill for entry in self.entries)
