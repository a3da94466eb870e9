"""Claims about the prefix cache are worth something only if a broken one is seen: four faults."""

import random
from collections.abc import Callable, Sequence

import pytest

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.engine import prefix_cache
from mini_engine.engine.batch import Request, SchedulerLimits
from mini_engine.engine.engine import Engine
from mini_engine.engine.prefix_cache import KeyedBlocks, SharingPool, block_key
from tests.support.fake_runner import FakeRunner, tokens_alone


def is_right() -> bool:
    """Whether crowds with a few beginnings write, in little memory, what each writes alone."""
    hits = 0
    for seed in range(8):
        rng = random.Random(seed)
        beginnings = [[rng.randrange(2) for _ in range(8)] for _ in range(3)]
        todo = [
            Request(f"{i}", [*rng.choice(beginnings), *range(rng.randint(1, 9))], rng.randint(1, 9))
            for i in range(20)
        ]
        limits = SchedulerLimits(4, 7, 16, 2, 40, rng.random() < 0.5, prefix_caching=True)
        engine = Engine(FakeRunner(limits), limits, GraphDispatcher("NONE", [], 4))
        try:
            done = engine.run(todo)
        except AssertionError:  # the cache holds another text
            return False
        if {c.request_id: c.tokens for c in done} != {r.request_id: tokens_alone(r) for r in todo}:
            return False
        hits += engine.scheduler.first_hits.hit
    assert hits > 100
    return True


def test_sharing_is_right_when_nothing_is_broken() -> None:
    assert is_right()


def test_a_block_freed_while_it_is_shared_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def free(self: SharingPool, request_id: str) -> None:
        for block in self.block_table(request_id):
            self._owners[block] = 0
        super(SharingPool, self).free(request_id)

    monkeypatch.setattr(SharingPool, "free", free)
    assert not is_right()


def test_a_key_that_ignores_its_parent_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def orphan(parent: bytes, tokens: Sequence[int]) -> bytes:
        del parent
        return block_key(b"", tokens)

    monkeypatch.setattr(prefix_cache, "block_key", orphan)
    assert not is_right()


def test_a_partial_block_in_the_cache_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk ends within a block, which gets its key for the tokens that are known to follow."""
    really: Callable[..., tuple[int, ...]] = SharingPool.allocate

    def allocate(self: SharingPool, request_id: str, num_tokens: int) -> tuple[int, ...]:
        table, sharer = really(self, request_id, num_tokens), self._sharers[request_id]
        full = min(len(table), sharer.text.num_tokens // self.block_size)
        for index in range(sharer.named, full):
            self.blocks.name(table[index], self._key(sharer.text, index))
        sharer.named = full
        return table

    monkeypatch.setattr(SharingPool, "allocate", allocate)
    assert not is_right()


def test_an_evicted_block_that_keeps_its_key_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    def pop(self: KeyedBlocks) -> int:
        return self._queue.popitem(last=False)[0]

    monkeypatch.setattr(KeyedBlocks, "pop", pop)
    assert not is_right()
