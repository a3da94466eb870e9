"""Claims about the pool of KV blocks."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.engine.blocks import NULL_BLOCK, BlockPool, OutOfBlocks, slot_of


def test_slot_follows_the_block_table() -> None:
    pool = BlockPool(num_blocks=9, block_size=4)
    pool.allocate("a", 3)
    pool.allocate("b", 1)
    table = pool.allocate("a", 9)  # its blocks are not neighbours now
    assert table == pool.block_table("a") == (1, 3, 4)
    assert [slot_of(table, p, 4) for p in (0, 3, 4, 8)] == [4, 7, 12, 16]


def test_a_freed_request_is_used_again_from_its_tail_to_its_head() -> None:
    pool = BlockPool(num_blocks=8, block_size=1)
    assert pool.allocate("a", 3) == (1, 2, 3)
    assert pool.allocate("b", 2) == (4, 5)
    pool.free("a")
    pool.free("b")
    assert pool.allocate("c", 7) == (5, 4, 3, 2, 1, 6, 7)


def test_there_is_room_exactly_where_allocate_would_find_blocks() -> None:
    pool = BlockPool(num_blocks=5, block_size=2)
    pool.allocate("a", 3)
    assert [n for n in range(1, 12) if pool.has_room("a", n)] == list(range(1, 9))
    assert [n for n in range(1, 12) if pool.has_room("b", n)] == list(range(1, 5))


def test_double_and_foreign_free_are_refused() -> None:
    pool = BlockPool(num_blocks=4, block_size=2)
    pool.allocate("a", 2)
    pool.free("a")
    with pytest.raises(ValueError, match="'a' holds no blocks"):
        pool.free("a")
    with pytest.raises(ValueError, match="'b' holds no blocks"):
        pool.free("b")
    assert pool.num_free == 3


@given(num_blocks=st.integers(2, 20), block_size=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_every_block_has_one_owner_whatever_is_asked(
    num_blocks: int, block_size: int, seed: int
) -> None:
    pool, rng = BlockPool(num_blocks, block_size), random.Random(seed)
    wanted: dict[str, int] = {}  # tokens each owner has a place for
    for _ in range(60):
        owner = rng.choice("abcde")
        if owner in wanted and rng.random() < 0.3:
            pool.free(owner)
            del wanted[owner]
        else:
            tokens = rng.randint(max(1, wanted.get(owner, 0)), 2 * num_blocks)
            before = {name: pool.block_table(name) for name in "abcde"}
            try:
                table = pool.allocate(owner, tokens)
            except OutOfBlocks:
                assert {name: pool.block_table(name) for name in "abcde"} == before
            else:
                wanted[owner] = tokens
                assert table[: len(before[owner])] == before[owner]
                assert len(table) == -(-tokens // block_size)
        slots = [
            slot_of(pool.block_table(name), p, block_size)
            for name, n in wanted.items()
            for p in range(n)
        ]
        assert len(set(slots)) == len(slots)
        assert all(slot // block_size != NULL_BLOCK for slot in slots)
        held = sum(len(pool.block_table(name)) for name in "abcde")
        assert held + pool.num_free == num_blocks - 1
    for owner in wanted:
        pool.free(owner)
    assert pool.num_free == num_blocks - 1
