"""What a measured engine is asked and what it answers: prompts in, the time of every token out.

In:  a `Job`. Out: a `Lap` for each batch, and of a lap the gaps between tokens.

    session = adapter.start(job)
    lap = session.lap(prompts(job, 1))
    gaps_us, tokens_a_piece = gaps(lap.times)

A token's time is `time.perf_counter()` when the interface has handed it over: the caller could use
it then and not before. Standard library only, for it runs under the other engine's Python.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

KEPT_BACK = 8


@dataclass(frozen=True)
class Job:
    """The same work for every engine: `batch` prompts of `context` tokens at a time."""

    engine: str  # "vllm", "vllm-eager"
    model: str  # a checkpoint folder
    batch: int
    context: int
    tokens: int  # new tokens of each request, the prompt's own among them
    laps: int  # batches that count, after one that does not
    vocab: int
    memory: float  # of the GPU, for weights and cache
    where: str = ""  # gpt-fast: the folder of its scripts

    @property
    def eager(self) -> bool:
        return self.engine.endswith("-eager")

    @property
    def room(self) -> int:
        """Tokens that a request may grow to; some schedulers keep a few of them back."""
        return self.context + self.tokens + KEPT_BACK


class Lap(NamedTuple):
    """One batch: for each request, its new tokens and when each arrived (s). An engine that gives
    all requests one prompt answers with that one request."""

    times: list[list[float]]
    tokens: list[list[int]]


class Session(Protocol):
    """An engine that has loaded the model."""

    version: str

    def lap(self, prompts: Sequence[Sequence[int]]) -> Lap:
        """Submit all prompts, and return when every request has all of its tokens."""
        ...


def prompts(job: Job, lap: int) -> list[list[int]]:
    """Random prompts, other ones each lap: none is answered out of a prefix cache. The same for
    every engine, on every Python."""
    drawn = random.Random(f"{job.context} tokens, lap {lap}")
    return [[drawn.randrange(job.vocab) for _ in range(job.context)] for _ in range(job.batch)]


def empty_lap(requests: int) -> Lap:
    """For an adapter to fill."""
    return Lap([[] for _ in range(requests)], [[] for _ in range(requests)])


def gaps(times: Sequence[Sequence[float]]) -> tuple[list[float], float]:
    """(µs between two pieces that one request got, tokens a piece), while all requests decode.

    All of them decode from the last first token to the first last one: before, some prompts are
    still computed; after, the batch is smaller. A gap counts where both its ends lie in between.
    Tokens that arrive at the same time are one piece. Raises ValueError where there is no gap.
    """
    began, ended = max(each[0] for each in times), min(each[-1] for each in times)
    found: list[float] = []
    tokens = 0
    for each in times:
        inside = [time for time in each if began <= time <= ended]
        pieces = sorted(set(inside))
        found += [1e6 * (after - before) for before, after in zip(pieces, pieces[1:])]  # noqa: B905, RUF007
        tokens += sum(time > pieces[0] for time in inside) if pieces else 0
    if not found:
        raise ValueError(
            f"there was no time at which all {len(times)} requests were decoding: take a smaller "
            "batch, or more --steps"
        )
    return found, tokens / len(found)


def leading(ours: Sequence[Sequence[int]], theirs: Sequence[Sequence[int]], first: int) -> float:
    """Share of the first tokens of each request up to which both wrote the same. After the first
    difference two right engines write different texts, so what follows is not compared."""
    same = compared = 0
    for one, other in zip(ours, theirs):  # noqa: B905 (one may have answered with one request)
        pairs = list(zip(one, other))[:first]  # noqa: B905
        unequal = [i for i, (a, b) in enumerate(pairs) if a != b]
        same += unequal[0] if unequal else len(pairs)
        compared += len(pairs)
    return same / compared if compared else 0.0
