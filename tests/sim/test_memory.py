"""The caching allocator: who owns which address when."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.sim.memory import (
    BLOCK_BYTES,
    SEGMENT_BYTES,
    DeviceOutOfMemory,
    IllegalAddress,
    Memory,
)

U8 = np.dtype(np.uint8)
MEGABYTE = 2**20


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * MEGABYTE), st.integers(0, 99))))
def test_no_two_live_blocks_overlap_and_everything_comes_back(
    moves: list[tuple[bool, int, int]],
) -> None:
    memory = Memory(32 * MEGABYTE)
    live = []
    for number, (allocate, nbytes, pick) in enumerate(moves):
        if allocate or not live:
            try:
                block = memory.allocate(nbytes)
            except DeviceOutOfMemory:
                continue
            memory.view(block.address, (block.nbytes,), U8)[:] = number % 251
            live.append((block, number % 251))
        else:
            block, mark = live.pop(pick % len(live))
            assert (memory.view(block.address, (block.nbytes,), U8) == mark).all()
            memory.free(block)
        assert memory.allocated_bytes() == sum(b.nbytes for b, _ in live)
        assert memory.reserved_bytes() <= memory.capacity_bytes
    for block, mark in live:
        assert (memory.view(block.address, (block.nbytes,), U8) == mark).all()
        memory.free(block)
    memory.release_cached()
    assert memory.reserved_bytes() == memory.allocated_bytes() == 0


def test_fresh_and_freed_memory_is_poison() -> None:
    memory = Memory(MEGABYTE * 4)
    block = memory.allocate(4096)
    floats = memory.view(block.address, (1024,), np.dtype(np.float32))
    assert np.isnan(floats).all()
    floats[:] = 1.0
    memory.free(block)
    assert np.isnan(floats).all()


def test_a_released_address_is_illegal_to_touch() -> None:
    memory = Memory(MEGABYTE * 4)
    block = memory.allocate(4096)
    memory.free(block)
    assert memory.release_cached() == SEGMENT_BYTES
    with pytest.raises(IllegalAddress, match="illegal memory access"):
        memory.view(block.address, (1,), U8)


def test_an_overrun_past_the_segment_is_illegal() -> None:
    memory = Memory(MEGABYTE * 8)
    block = memory.allocate(4096)
    with pytest.raises(IllegalAddress):
        memory.view(block.address, (SEGMENT_BYTES + 1,), U8)


def test_out_of_memory_says_what_was_asked_and_what_is_left() -> None:
    memory = Memory(MEGABYTE * 4)
    memory.allocate(3 * MEGABYTE)
    with pytest.raises(
        DeviceOutOfMemory, match=r"asked for 2,097,152 bytes.*4,194,304 of 4,194,304"
    ):
        memory.allocate(2 * MEGABYTE)


def test_bad_requests_are_refused() -> None:
    memory = Memory(MEGABYTE * 4)
    block = memory.allocate(1)
    assert block.nbytes == BLOCK_BYTES
    memory.free(block)
    with pytest.raises(ValueError, match="freed twice"):
        memory.free(block)
    with pytest.raises(ValueError, match="pool 7 does not exist"):
        memory.allocate(1, 7)
    with pytest.raises(ValueError, match="must not be negative"):
        memory.allocate(-1)
