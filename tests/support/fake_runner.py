"""A runner with no model: its "K and V" are hashes and its next token is a hash of them all.

What it writes into a token's slot of a paged cache depends on all tokens before it, as K and V do.
To sample, it reads the whole context back through the block table. A wrong position, a stale block
or one of another text, a chunk left out or a padded row that writes where it should not all change
the hash, and so the tokens.
"""

import zlib
from collections.abc import Sequence

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.engine.batch import Request, ScheduledBatch, ScheduledRequest, SchedulerLimits
from mini_engine.engine.blocks import NULL_BLOCK, slot_of
from mini_engine.engine.engine import Completion, Engine

VOCAB = 31
POISON = (-7, -7)
GARBAGE = -1  # a token that no request may end up with


def digest(before: int, token: int) -> int:
    """What stands for K and V of a token, after a token with the digest `before` (0: none)."""
    return zlib.crc32(f"{before},{token}".encode())


def next_token(digests: Sequence[int]) -> int:
    return zlib.crc32(",".join(map(str, digests)).encode()) % VOCAB


def tokens_alone(request: Request) -> tuple[int, ...]:
    """What the request must end with: no batch, no cache, no scheduler."""
    digests, output = [0], list[int]()
    for token in request.prompt:
        digests.append(digest(digests[-1], token))
    while len(output) < request.max_new_tokens:
        output.append(next_token(digests[1:]))
        digests.append(digest(digests[-1], output[-1]))
        if output[-1] in request.eos_ids:
            break
    return tuple(output)


CROWD = tuple(Request(f"r{i}", [i + 1, 5, i + 2], 8) for i in range(4))


def are_right(done: Sequence[Completion] | None, requests: Sequence[Request] = CROWD) -> bool:
    """Whether each request got the tokens that it gets alone; None: the cache was corrupted."""
    alone = {request.request_id: tokens_alone(request) for request in requests}
    return done is not None and {one.request_id: one.tokens for one in done} == alone


def served(engine: Engine, requests: Sequence[Request] = CROWD) -> list[Completion] | None:
    """The completions, or None where the runner reads another text than the request's own."""
    try:
        return engine.run(requests)
    except AssertionError:
        return None


class FakeRunner:
    """Satisfies mini_engine.engine.engine.Runner. A step takes 10 us and 1 us a token."""

    def __init__(self, limits: SchedulerLimits, padding_block: int = NULL_BLOCK) -> None:
        self.block_size = limits.block_size
        self.padding_block = padding_block
        # (position, digest) of each slot
        self.cache = [POISON] * (limits.num_blocks * limits.block_size)
        self.clock_us = 0.0
        self.descriptors: list[BatchDescriptor] = []
        self.batches: list[ScheduledBatch] = []

    @property
    def now_us(self) -> float:
        return self.clock_us

    def wait_until(self, us: float) -> None:
        self.clock_us = max(self.clock_us, us)

    def execute(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> list[int]:
        self.batches.append(batch)
        self.descriptors.append(descriptor)
        self.clock_us += batch.steps * (10.0 + descriptor.num_tokens)
        rows = [(entry, entry.token_ids) for entry in batch.entries]
        sampled: list[int] = []
        for step in range(batch.steps):
            # A request may share what one before it in the batch writes. All rows write before any
            # row samples, as the kernels of one layer do.
            for entry, tokens in rows:
                assert entry.query_len > 0
                assert NULL_BLOCK not in entry.block_table
                self._write(entry, step, tokens)
            assert descriptor.num_tokens >= batch.num_tokens
            for row in range(batch.num_tokens, descriptor.num_tokens):
                slot = slot_of([self.padding_block], row % self.block_size, self.block_size)
                self.cache[slot] = POISON
            sampling = [entry for entry, _ in rows if entry.samples]
            new = [self._sample(entry, step) for entry in sampling]
            sampled += [token for drawn in new for token in drawn]
            rows = [(entry, drawn[-1:]) for entry, drawn in zip(sampling, new, strict=True)]
        return sampled

    def _write(self, entry: ScheduledRequest, step: int, tokens: Sequence[int]) -> None:
        """The inputs of a step. What is beyond a request's blocks goes to the null block."""
        table, start = entry.block_table, entry.start
        if step:
            start = entry.context_len + step - 1
        if start >= len(table) * self.block_size:
            return
        before = self.cache[slot_of(table, start - 1, self.block_size)][1] if start else 0
        for position, token in enumerate(tokens, start):
            before = digest(before, token)
            self.cache[slot_of(table, position, self.block_size)] = (position, before)

    def _sample(self, entry: ScheduledRequest, step: int) -> list[int]:
        """After its last known token and after each draft. Garbage after the end of a request's
        blocks: nobody may keep it."""
        end = entry.context_len + step
        if end > len(entry.block_table) * self.block_size:
            return [GARBAGE]
        digests = self.read_back(entry.block_table, end)
        return [next_token(digests[: n + 1]) for n in range(end - entry.num_sampled, end)]

    def read_back(self, block_table: Sequence[int], length: int) -> list[int]:
        """Digests at positions 0 .. length - 1, as attention would read them."""
        rows = [self.cache[slot_of(block_table, p, self.block_size)] for p in range(length)]
        assert [position for position, _ in rows] == list(range(length)), "cache corrupted"
        return [value for _, value in rows]


class SteppingRunner(FakeRunner):
    """One whose full graphs run several decode steps."""

    def __init__(self, limits: SchedulerLimits) -> None:
        super().__init__(limits)
        self.steps = limits.steps_per_replay

    def steps_of(self, descriptor: BatchDescriptor) -> int:
        return self.steps if descriptor.mode is CUDAGraphMode.FULL else 1
