"""Lab 7: an allocator with pools, held against a map kept by hand; and a ladder in one pool."""

from __future__ import annotations

import random

import numpy as np
import pytest

from mini_engine.predict.hardware import load_spec
from mini_engine.sim import kernels as k
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer
from mini_engine.sim.memory import (
    BLOCK_BYTES,
    DEFAULT_POOL,
    SEGMENT_BYTES,
    Block,
    DeviceOutOfMemory,
    IllegalAddress,
    Memory,
)

MIB, BYTES = 2**20, np.dtype(np.uint8)


def contents(memory: Memory, block: Block) -> np.ndarray:
    """The bytes of a block, shared with the device."""
    return memory.view(block.address, (block.nbytes,), BYTES)


# ---------------------------------------------------------------- blocks


@pytest.mark.catches("a-block-is-handed-out-whole")
def test_a_block_is_as_large_as_was_asked_for_rounded_up() -> None:
    for nbytes in (0, 1, 511, 512, 513, 5000, 3 * MIB):
        wanted = max(BLOCK_BYTES, -(-nbytes // BLOCK_BYTES) * BLOCK_BYTES)
        handed_out = Memory(16 * MIB).allocate(nbytes).nbytes
        assert handed_out == wanted, f"bytes of a block for {nbytes}"


@pytest.mark.catches("a-block-is-handed-out-whole")
def test_a_segment_is_handed_out_in_many_blocks() -> None:
    memory = Memory(16 * MIB)
    blocks = [memory.allocate(BLOCK_BYTES) for _ in range(SEGMENT_BYTES // BLOCK_BYTES)]
    assert memory.reserved_bytes() == SEGMENT_BYTES
    assert len({block.address for block in blocks}) == len(blocks)


@pytest.mark.catches("fresh-memory-is-zero")
def test_fresh_memory_holds_poison_and_not_zeros() -> None:
    memory = Memory(16 * MIB)
    block = memory.allocate(4096)
    assert set(contents(memory, block).tolist()) == {0xFF}
    contents(memory, block)[:] = 7
    memory.free(block)
    again = memory.allocate(4096)
    assert set(contents(memory, again).tolist()) == {0xFF}, "bytes that the next owner finds"


def test_freed_memory_is_poison_too_unless_it_is_asked_to_stay_as_it_is() -> None:
    for fill, found in ((True, 0xFF), (False, 7)):
        memory = Memory(16 * MIB)
        block = memory.allocate(512)
        contents(memory, block)[:] = 7
        memory.free(block, fill=fill)
        left = memory.view(block.address, (512,), BYTES)
        assert set(left.tolist()) == {found}, f"bytes after free(fill={fill})"


def test_a_device_that_only_counts_touches_no_byte() -> None:
    memory = Memory(2**40, poison=False)
    block = memory.allocate(2**36)  # 64 GiB
    memory.free(block)
    assert block.segment.bytes_on_host is None
    assert memory.reserved_bytes() == 2**36


def test_a_block_knows_which_allocation_owns_it() -> None:
    memory = Memory(16 * MIB)
    first = memory.allocate(4096)
    serial = first.serial
    assert first.owned_by(serial)
    memory.free(first)
    assert not first.owned_by(serial)
    second = memory.allocate(4096)
    assert second.serial != serial
    assert not second.owned_by(serial)


@pytest.mark.catches("free-gives-it-to-the-driver")
def test_a_freed_block_stays_mapped_and_is_the_next_ones_place() -> None:
    memory = Memory(16 * MIB)
    first = memory.allocate(3 * MIB)
    memory.free(first)
    allocated, reserved = memory.allocated_bytes() // MIB, memory.reserved_bytes() // MIB
    assert (allocated, reserved) == (0, 4), "MiB in use, and MiB in the pool"
    memory.view(first.address, (1,), BYTES)  # a graph that still points here sees no error
    assert memory.allocate(3 * MIB).address == first.address


@pytest.mark.catches("the-first-that-fits")
def test_of_the_free_blocks_the_smallest_that_fits_is_taken() -> None:
    memory = Memory(16 * MIB)
    blocks = [memory.allocate(kib * 1024) for kib in (64, 1, 8, 1, 16, 1, 8, 1)]
    free = {f"{blocks[at].nbytes // 1024} KiB": blocks[at].address for at in (6, 4, 2, 0)}
    for at in (0, 2, 4, 6):
        memory.free(blocks[at])
    for kib, wanted in ((9, "16 KiB"), (8, "8 KiB"), (64, "64 KiB")):  # of two 8 KiB the lower
        address = memory.allocate(kib * 1024).address
        found = next((name for name, place in free.items() if place == address), "elsewhere")
        assert found == wanted, f"the free block that {kib} KiB were given"


@pytest.mark.catches("neighbours-stay-apart")
def test_free_neighbours_become_one_block_in_whatever_order_they_are_freed() -> None:
    rng = random.Random(1)
    for _ in range(30):
        memory, pieces = Memory(16 * MIB), rng.randint(2, 12)
        blocks = [memory.allocate(SEGMENT_BYTES // 2048 * 512 // pieces) for _ in range(pieces)]
        start = blocks[0].address
        rng.shuffle(blocks)
        for block in blocks:
            memory.free(block)
        moved = memory.allocate(SEGMENT_BYTES).address - start
        assert moved == 0, f"a whole segment does not fit where {pieces} blocks were freed"


def test_a_bad_request_is_refused_and_changes_nothing() -> None:
    memory = Memory(16 * MIB)
    with pytest.raises(ValueError, match="-1"):
        memory.allocate(-1)
    with pytest.raises(ValueError, match="7"):
        memory.allocate(1, 7)
    left, gone = memory.allocate(512), memory.allocate(512)
    for block in (gone, left):
        memory.free(block)
    memory.allocate(512)
    now = memory.allocate(512)  # stands where `gone` stood
    assert now.address == gone.address
    if now is not gone:
        with pytest.raises(ValueError, match="freed"):
            memory.free(gone)
    assert memory.allocated_bytes() == 1024
    memory.free(now)
    with pytest.raises(ValueError, match="freed"):
        memory.free(now)


# ---------------------------------------------------------------- pools


@pytest.mark.catches("memory-is-memory")
def test_pools_do_not_draw_from_each_other() -> None:
    memory = Memory(16 * MIB)
    pool = memory.new_pool()
    memory.free(memory.allocate(MIB))
    mine = memory.allocate(MIB, pool)
    reserved, allocated = memory.reserved_bytes(pool), memory.allocated_bytes(pool)
    assert (reserved, allocated) == (SEGMENT_BYTES, MIB), "of the pool, in bytes"
    place = mine.address
    memory.free(mine)
    assert memory.allocate(MIB).address != place


@pytest.mark.catches("memory-is-memory")
def test_what_a_capture_has_freed_is_given_to_nobody_outside() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * MIB)
    x, y = device.upload(np.ones(4, np.float32)), device.empty(4)
    with device.capture() as graph:
        scratch = device.empty(2**20)  # 4 MiB: no room for it in the segment of x and y
        device.launch(k.scale, scratch[:4], x, by=3.0)
        device.launch(k.multiply, y, x, scratch[:4])
        device.free(scratch)
    others = [device.upload(np.full(2**18, 9, np.float32)) for _ in range(8)]
    graph.replay()
    np.testing.assert_array_equal(device.read(y), np.full(4, 3, np.float32))
    for other in others:
        assert (device.read(other) == 9).all(), "the graph wrote into somebody's buffer"


@pytest.mark.catches("empty-cache-frees-graphs")
def test_memory_that_graphs_point_to_is_not_released_though_it_is_free() -> None:
    memory = Memory(16 * MIB)
    pool = memory.new_pool()
    memory.free(memory.allocate(MIB, pool))
    memory.pin(pool, 2)
    released = memory.release_cached()
    assert released == 0, "bytes of a pool with two graphs"
    memory.pin(pool, -1)
    released = memory.release_cached(pool)
    assert released == 0, "bytes of a pool with one graph left"
    memory.pin(pool, -1)
    assert memory.release_cached(pool) == SEGMENT_BYTES


@pytest.mark.catches("empty-cache-frees-graphs")
def test_a_graph_replays_after_the_cache_was_emptied() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * MIB)
    x, y = device.upload(np.ones(4, np.float32)), device.empty(4)
    with device.capture() as graph:
        scratch = device.empty(4)
        device.launch(k.scale, scratch, x, by=3.0)
        device.launch(k.multiply, y, x, scratch)
        device.free(scratch)
    device.memory.release_cached()
    graph.replay()
    np.testing.assert_array_equal(device.read(y), np.full(4, 3, np.float32))


def test_only_wholly_free_segments_go_back_and_then_their_addresses_are_nobodys() -> None:
    memory = Memory(16 * MIB)
    pool = memory.new_pool()
    half, whole, other = (memory.allocate(n, p) for n, p in ((512, 0), (2 * MIB, 0), (512, pool)))
    rest = memory.allocate(512)
    for block in (half, whole, other):
        memory.free(block)
    assert memory.release_cached(pool) == SEGMENT_BYTES
    assert memory.release_cached() == SEGMENT_BYTES
    assert memory.reserved_bytes() == SEGMENT_BYTES
    contents(memory, rest)[:] = 1
    for gone in (whole, other):
        with pytest.raises(IllegalAddress):
            memory.view(gone.address, (1,), BYTES)


def test_a_full_device_first_takes_back_what_is_only_cached() -> None:
    memory = Memory(4 * MIB)
    memory.free(memory.allocate(3 * MIB))
    assert memory.allocate(3 * MIB, memory.new_pool()).nbytes == 3 * MIB
    with pytest.raises(DeviceOutOfMemory):
        memory.allocate(3 * MIB)


# ---------------------------------------------------------------- held against a map kept by hand


class ByHand:
    """Who owns which bytes, as plain intervals. Gaps are looked for anew at every request."""

    def __init__(self) -> None:
        self.segments: list[tuple[int, int, int]] = []  # (start, end, pool)
        self.live: dict[int, tuple[int, int]] = {}  # address -> (end, pool)

    def place(self, nbytes: int, pool: int) -> int | None:
        """Where the best fit begins: the smallest gap, and of equal ones the lowest."""
        gaps = []
        for start, end, owner in self.segments:
            inside = sorted((a, e) for a, (e, _) in self.live.items() if start <= a < end)
            begins = [start, *(e for _, e in inside)]
            ends = [*(a for a, _ in inside), end]
            if owner == pool:
                gaps += [(e - b, b) for b, e in zip(begins, ends, strict=True) if e - b >= nbytes]
        return min(gaps)[1] if gaps else None

    def release(self, pool: int | None) -> int:
        empty = [
            (start, end, owner)
            for start, end, owner in self.segments
            if pool in (None, owner) and not any(start <= a < end for a in self.live)
        ]
        self.segments = [segment for segment in self.segments if segment not in empty]
        return sum(end - start for start, end, _ in empty)


def test_whatever_is_allocated_and_freed_stands_where_a_map_by_hand_says() -> None:
    rng = random.Random(2)
    for _ in range(12):
        memory, hand = Memory(2**30), ByHand()
        pools = [DEFAULT_POOL, memory.new_pool(), memory.new_pool()]
        held: list[tuple[Block, int]] = []
        for step in range(120):
            move = rng.random()
            if move < 0.02:
                pool = rng.choice([None, *pools])
                assert memory.release_cached(pool) == hand.release(pool)
            elif move < 0.55 or not held:
                nbytes = rng.choice([512, 4096, 100_000, MIB, 3 * MIB]) * rng.randint(1, 3)
                nbytes, pool = -(-nbytes // 512) * 512, rng.choice(pools)
                place, block = hand.place(nbytes, pool), memory.allocate(nbytes, pool)
                if place is None:
                    size = -(-nbytes // SEGMENT_BYTES) * SEGMENT_BYTES
                    hand.segments.append((block.address, block.address + size, pool))
                else:
                    assert block.address - place == 0, "bytes from the best fit"
                assert (block.nbytes, block.pool) == (nbytes, pool)
                hand.live[block.address] = (block.address + nbytes, pool)
                contents(memory, block)[[0, -1]] = step
                held.append((block, step))
            else:
                block, mark = held.pop(rng.randrange(len(held)))
                assert contents(memory, block)[[0, -1]].tolist() == [mark, mark], "overwritten"
                memory.free(block)
                del hand.live[block.address]
            for pool in pools:
                reserved = sum(end - start for start, end, owner in hand.segments if owner == pool)
                used = sum(end - a for a, (end, owner) in hand.live.items() if owner == pool)
                assert memory.reserved_bytes(pool) == reserved
                assert memory.allocated_bytes(pool) == used


# ---------------------------------------------------------------- a ladder in one pool


def wide_runner(sizes: list[int], megabytes: int = 512, *, compute: bool = False) -> GraphRunner:
    """y = 4x over 4 MiB of scratch a row. Without `compute` memory is counted and not touched."""
    device = Device(load_spec("h200"), compute=compute, memory_bytes=megabytes * MIB)
    inputs = StaticInputs(device, {"x": ((max(sizes), 4), "float32")})

    def forward(rows: int) -> Buffer:
        with device.scratch() as scratch:
            wide, out = scratch.empty(rows, 2**20), scratch.empty(rows, 4)
            x = inputs.view(rows)["x"]
            double = wide.reshape(rows * 2**18, 4)[:rows]
            device.launch(k.scale, double, x, by=2.0)
            device.launch(k.scale, out, double, by=2.0)
            return scratch.keep(out)

    return GraphRunner(device, forward, inputs, sizes)


def pool_mib(runner: GraphRunner) -> float:
    """Captures, and says by how much the pool has grown."""
    return sum(report.pool_growth_bytes for report in runner.capture().rungs) / MIB


LADDERS = [[1, 2, 4, 8], [3, 5, 6], [1, 8, 9, 10, 16], [7]]


@pytest.mark.catches("smallest-first")
def test_rungs_are_captured_and_reported_largest_first_whatever_the_ladder() -> None:
    for sizes in LADDERS:
        runner = wide_runner(sizes)
        captured = [report.rung for report in runner.capture().rungs]
        assert captured == sizes[::-1], "rungs in the order of their capture"
        assert sorted(runner.graphs) == sizes


@pytest.mark.catches("a-pool-for-each-rung")
def test_all_graphs_of_a_runner_live_in_its_one_pool() -> None:
    runner = wide_runner([1, 2, 4, 8])
    pool = runner.pool
    runner.capture()
    assert {graph.pool for graph in runner.graphs.values()} == {pool}


@pytest.mark.catches("scratch-stays-the-graphs")
def test_the_pool_of_a_whole_ladder_is_as_large_as_that_of_its_top_rung_alone() -> None:
    for sizes in LADDERS:
        alone, ladder = wide_runner(sizes[-1:]), wide_runner(sizes)
        top, rungs = pool_mib(alone), pool_mib(ladder)
        assert rungs == top, f"MiB of the rungs {sizes}, and of {sizes[-1]} alone"
        assert top == 4 * sizes[-1] + 2  # scratch, and a segment for the outputs


def test_another_order_is_kept_to_and_costs_the_sum() -> None:
    runner = wide_runner([1, 2, 4])
    report = runner.capture(order=[1, 2, 4])
    assert [rung.rung for rung in report.rungs] == [1, 2, 4]
    grown = sum(rung.pool_growth_bytes for rung in report.rungs) / MIB
    assert grown == 4 * (1 + 2 + 4) + 2, "MiB: the scratch of every rung, and the outputs' segment"


@pytest.mark.catches("one-rung-too-large-ends-it")
def test_a_rung_that_finds_no_memory_is_dropped_and_the_smaller_ones_are_captured() -> None:
    for megabytes, kept in ((512, [8, 4, 2, 1]), (24, [4, 2, 1]), (14, [2, 1]), (3, [])):
        report = wide_runner([1, 2, 4, 8], megabytes).capture()
        captured = [rung.rung for rung in report.rungs]
        assert captured == kept, f"rungs captured in {megabytes} MiB"
        assert report.dropped == [rung for rung in (8, 4, 2, 1) if rung not in kept]


def test_every_rung_replays_right_in_the_room_that_it_shares() -> None:
    runner, rng = wide_runner([1, 2, 4], compute=True), np.random.default_rng(3)
    runner.capture()
    for rows in (4, 1, 3, 2, 4, 1, 1, 3):
        x = rng.normal(size=(rows, 4)).astype(np.float32)
        out = runner.device.read(runner.run(rows, {"x": x}))
        np.testing.assert_array_equal(out, 4 * x)


# ---------------------------------------------------------------- the life of an output


def test_an_output_is_good_until_the_next_replay_of_its_own_graph() -> None:
    runner = wide_runner([2], compute=True)
    runner.capture()
    kept = runner.run(2, {"x": np.ones((2, 4), np.float32)})
    saved = runner.device.read(kept)
    runner.run(2, {"x": np.full((2, 4), 5, np.float32)})
    assert (saved == 4).all()
    assert (runner.device.read(kept) == 20).all()


@pytest.mark.catches("scratch-stays-the-graphs", "a-pool-for-each-rung", "memory-is-memory")
def test_an_output_may_stand_where_another_graph_of_the_pool_has_its_scratch() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * MIB)
    x, pool = device.upload(np.ones(4, np.float32)), device.memory.new_pool()
    y = device.empty(4)
    with device.capture(pool) as first:
        scratch = device.empty(4)
        device.launch(k.scale, scratch, x, by=2.0)
        device.launch(k.scale, y, scratch, by=2.0)
        device.free(scratch)  # its place is free for the graphs captured after this one
    with device.capture(pool) as second:
        out = device.empty(4)
        device.launch(k.scale, out, x, by=3.0)
    second.replay()
    assert (device.read(out) == 3).all()
    first.replay()
    assert (device.read(out) == 2).all(), "out stands in the first graph's scratch"
