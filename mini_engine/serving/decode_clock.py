"""The decoding requests of a simulated server, as counts that many steps change at once.

In:  requests that begin to decode; how many steps to take.
Out: which requests end, how many blocks the steps take, how many KV tokens a step reads.

Every decoding request gets one token in every step. So:

* One clock that counts steps gives all contexts: clock - base, where a request's base does not
  change while it decodes.
* The clock at which a request ends is known from its start; a heap gives the next ending.
* A request takes a block when its context is a multiple of block_size, that is when clock and base
  are equal modulo block_size. So it is enough to count how many requests have which residue.

More steps at once cost no more time.
"""

from dataclasses import dataclass
from heapq import heappop, heappush


@dataclass(slots=True, eq=False)
class Live:
    """A request on its way through the server."""

    number: int  # in order of arrival
    arrival_us: float
    prompt: int
    output: int  # tokens that it will get
    generated: int = 0  # tokens that it has got; out of date while it decodes
    computed: int = 0  # tokens in the cache; up to date only while it prefills
    first_token_us: float = 0.0
    last_token_us: float = 0.0  # out of date while it decodes
    base: int = 0  # while it decodes: clock - base tokens are in the cache
    ends_at: int = 0  # while it decodes: the clock at which it has its last token

    @property
    def known(self) -> int:
        """Tokens to prefill: the prompt and, after a preemption, what was generated."""
        return self.prompt + self.generated


class DecodeClock:
    """The clock, and the requests that decode by it."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.now = 0  # steps so far
        self._requests: dict[int, Live] = {}  # by number, in order of arrival
        self._endings: list[tuple[int, int]] = []  # heap of (ends_at, number); some are out of date
        self._base_sum = 0
        self._residues = [0] * block_size  # how many requests have which base % block_size

    def __len__(self) -> int:
        return len(self._requests)

    @property
    def kv_tokens(self) -> int:
        """The sum of the contexts in the next step, its own tokens included."""
        return len(self._requests) * (self.now + 1) - self._base_sum

    def begin(self, live: Live) -> None:
        """`live` has sampled `generated` tokens, the last of them not in the cache yet."""
        live.base = self.now - live.computed
        live.ends_at = self.now + live.output - live.generated
        self._requests[live.number] = live
        heappush(self._endings, (live.ends_at, live.number))
        self._base_sum += live.base
        self._residues[live.base % self.block_size] += 1

    def advance(self, steps: int) -> list[Live]:
        """Let `steps` steps pass, at most up to the next ending; returns those that end, in order
        of arrival."""
        self.now += steps
        ended = []
        while self._endings and self._endings[0][0] <= self.now:
            live = self._ending(heappop(self._endings))
            if live:
                self._leave(live)
                ended.append(live)
        return ended

    def evict_youngest(self) -> Live:
        """Remove the request that began last, and return it."""
        live = next(reversed(self._requests.values()))
        self._leave(live)
        return live

    def steps_to_ending(self) -> int:
        """Steps until the next request ends."""
        while not self._ending(self._endings[0]):
            heappop(self._endings)
        return self._endings[0][0] - self.now

    @property
    def blocks_due(self) -> int:
        """Blocks that the next step takes."""
        return self._residues[self.now % self.block_size]

    def blocks_taken(self, steps: int) -> int:
        """Blocks that the next `steps` steps take."""
        cycles, rest = divmod(steps, self.block_size)
        start = self.now % self.block_size
        turned = self._residues[start:] + self._residues[:start]  # by steps from now
        return cycles * len(self) + sum(turned[:rest])

    def steps_with_blocks(self, free: int, most: int) -> int:
        """How many of the next `most` steps `free` blocks suffice for."""
        if (most // self.block_size + 1) * len(self) <= free:
            return most
        # In block_size steps every request takes one block.
        steps = free // len(self) * self.block_size
        while steps < most and self.blocks_taken(steps + 1) <= free:
            steps += 1
        return min(steps, most)

    def _ending(self, entry: tuple[int, int]) -> Live | None:
        """The request of a heap entry, or None if it has been evicted since."""
        ends_at, number = entry
        live = self._requests.get(number)
        return live if live and live.ends_at == ends_at else None

    def _leave(self, live: Live) -> None:
        """Stop counting it here: from now on its own fields are up to date."""
        del self._requests[live.number]
        self._base_sum -= live.base
        self._residues[live.base % self.block_size] -= 1
        live.computed = self.now - live.base
        live.generated = live.output - (live.ends_at - self.now)
