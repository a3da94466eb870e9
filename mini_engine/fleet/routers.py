"""Which replica gets a request: what a gateway in front of several servers decides.

In:  the replicas that take requests, and one that arrives. Out: one of them.

A router knows what a gateway can know: what it has sent and seen come back, the lengths of prompt
and answer, and for `prefix` the keys of the blocks in each cache, as engines publish them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from itertools import count
from typing import NamedTuple

from mini_engine.engine.prefix_cache import block_key
from mini_engine.serving.replay import Replica, prompt_ids
from mini_engine.serving.request_trace import TraceRequest


class Arrival(NamedTuple):
    number: int  # of the request in the trace
    at_us: float
    request: TraceRequest
    first_token_us: float | None = None  # when another pool has computed the prompt


Router = Callable[[Sequence[Replica], Arrival], Replica]


def outstanding(replica: Replica, arrival: Arrival) -> int:
    """Tokens that the replica has promised and not finished, at the time of the arrival."""
    replica.advance_to(arrival.at_us)
    return replica.load.tokens


def round_robin() -> Router:
    turns = count()
    return lambda replicas, _: replicas[next(turns) % len(replicas)]


def least_tokens() -> Router:
    return lambda replicas, arrival: min(replicas, key=lambda one: outstanding(one, arrival))


def power_of_two() -> Router:
    """The better of two drawn at random, which is nearly as good as the best and asks only two
    (Mitzenmacher, IEEE TPDS 2001)."""
    rng, best = random.Random(0), least_tokens()
    return lambda replicas, arrival: best(rng.sample(replicas, min(2, len(replicas))), arrival)


def prefix_aware() -> Router:
    """Where least is to do, once the tokens that the replica's cache holds are left out."""

    def choose(replicas: Sequence[Replica], arrival: Arrival) -> Replica:
        work = [outstanding(one, arrival) for one in replicas]
        caches = {i: c for i, one in enumerate(replicas) if (c := one.scheduler.prefix_cache)}
        key, ids = b"", prompt_ids(arrival.number, arrival.request)
        size = replicas[0].limits.block_size
        for end in range(size, len(ids), size):
            key = block_key(key, ids[end - size : end])
            caches = {i: c for i, c in caches.items() if c.blocks.find(key) is not None}
            if not caches:
                break
            for i in caches:
                work[i] -= size
        return replicas[work.index(min(work))]

    return choose


ROUTERS: dict[str, Callable[[], Router]] = {
    "round-robin": round_robin, "least": least_tokens, "two": power_of_two, "prefix": prefix_aware,
}  # fmt: skip
