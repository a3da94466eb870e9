"""Lab 8b: an allocator with pools, held against a map kept by hand; and a ladder in one pool."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from mini_engine.dispatch.capture_report import CaptureReport, RungReport
from mini_engine.sim import kernels as k
from mini_engine.sim.capture import CaptureError
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer
from mini_engine.sim.memory import (
    BLOCK_BYTES,
    DEFAULT_POOL,
    FIRST_ADDRESS,
    SEGMENT_BYTES,
    Block,
    DeviceOutOfMemory,
    IllegalAddress,
    Memory,
    Segment,
    capture_ladder,
)
from mini_engine.step.cards import load_spec

MIB, BYTES = 2**20, np.dtype(np.uint8)


def contents(memory: Memory, block: Block) -> np.ndarray:
    """The bytes of a block, shared with the device."""
    return memory.view(block.address, (block.nbytes,), BYTES)


def laid_out(*sizes_kib: int) -> tuple[Memory, list[Block]]:
    """A segment of blocks side by side, as the given functions would leave it; none is free."""
    memory = Memory(16 * MIB)
    segment = Segment(FIRST_ADDRESS, sum(sizes_kib) * 1024, DEFAULT_POOL)
    address = FIRST_ADDRESS
    for kib in sizes_kib:
        segment.blocks.append(Block(address, kib * 1024, DEFAULT_POOL, segment))
        address += kib * 1024
    memory._segments.append(segment)
    memory._live = {block.address: block for block in segment.blocks}
    return memory, list(segment.blocks)


def let_go(memory: Memory, *blocks: Block) -> None:
    """Free without merging: by the given functions only."""
    for block in blocks:
        del memory._live[block.address]
        block.free = True
        memory._insert_free(block)


# ---------------------------------------------------------------- the best fit


@pytest.mark.catches("the-first-that-fits")
def test_the_best_fit_is_the_smallest_free_block_that_is_large_enough() -> None:
    for wanted_kib, best in ((9, 16), (16, 16), (17, 64), (64, 64), (1, 8), (8, 8)):
        memory, blocks = laid_out(64, 1, 8, 1, 16, 1)
        let_go(memory, blocks[0], blocks[2], blocks[4])
        block = memory._best_fit(wanted_kib * 1024, DEFAULT_POOL)
        found = block.nbytes // 1024 if block else None
        assert found == best, f"KiB of the block for {wanted_kib} KiB, of free ones of 8, 16 and 64"


@pytest.mark.catches("the-first-that-fits")
def test_of_equally_large_blocks_the_best_fit_is_the_one_at_the_lowest_address() -> None:
    memory, blocks = laid_out(8, 1, 4, 1, 4, 1, 4, 1)
    let_go(memory, blocks[6], blocks[2], blocks[4], blocks[0])
    order = [memory._best_fit(4096, DEFAULT_POOL) for _ in range(4)]
    places = [block.address - blocks[0].address for block in order if block]
    wanted = [block.address - blocks[0].address for block in (blocks[2], blocks[4], blocks[6])]
    assert places[:3] == wanted, "places of the 4 KiB blocks, in the order in which they are taken"
    assert places[3] == 0, "then the larger one"


@pytest.mark.catches("memory-is-memory")
def test_where_nothing_fits_the_best_fit_is_none_whatever_other_pools_have() -> None:
    memory, blocks = laid_out(4, 1, 4)
    let_go(memory, blocks[0], blocks[2])
    other = memory.new_pool()
    for wanted, pool in ((4097, DEFAULT_POOL), (512, other)):
        assert memory._best_fit(wanted, pool) is None, f"{wanted} bytes in pool {pool}"
    assert len(memory._free[DEFAULT_POOL]) == 2, "free blocks afterwards"


# ---------------------------------------------------------------- allocate


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
    places = {block.address for block in blocks}
    assert len(places) == len(blocks), "different places, and blocks"


def test_a_block_that_fits_exactly_leaves_no_rest() -> None:
    memory = Memory(16 * MIB)
    segment = memory.allocate(SEGMENT_BYTES).segment
    assert [block.nbytes for block in segment.blocks] == [SEGMENT_BYTES], "bytes of its blocks"
    assert memory._free[DEFAULT_POOL] == [], "the free list"


@pytest.mark.catches("fresh-memory-is-zero")
def test_fresh_memory_holds_poison_and_not_zeros() -> None:
    memory = Memory(16 * MIB)
    block = memory.allocate(4096)
    assert set(contents(memory, block).tolist()) == {0xFF}, "bytes of a new block"


@pytest.mark.catches("fresh-memory-is-zero", "poison-marks-new-segments")
def test_memory_that_somebody_had_before_is_poison_for_the_next_and_for_nobody_else() -> None:
    memory, blocks = laid_out(4, 1)
    contents(memory, blocks[0])[:] = 7
    let_go(memory, blocks[0])  # as freed inside a capture: nothing is overwritten
    again = memory.allocate(1024)
    assert again.address == blocks[0].address
    found, behind = (memory.view(FIRST_ADDRESS + at, (1024,), BYTES) for at in (0, 1024))
    assert set(found.tolist()) == {0xFF}, "bytes that the next owner finds"
    assert set(behind.tolist()) == {7}, "bytes behind it, which nobody was given"


def test_the_bytes_that_rounding_adds_are_poison_too() -> None:
    memory, blocks = laid_out(4)
    contents(memory, blocks[0])[:] = 7
    let_go(memory, blocks[0])
    again = memory.allocate(BLOCK_BYTES + 1)
    assert again.nbytes == 2 * BLOCK_BYTES
    assert set(contents(memory, again).tolist()) == {0xFF}, "bytes that the next owner finds"


@pytest.mark.catches("poison-spares-graphs")
def test_what_is_handed_out_or_freed_is_poison_in_every_pool_with_graphs_or_without() -> None:
    memory = Memory(16 * MIB)
    pinned = memory.new_pool()
    memory.pin(pinned)
    for pool in (DEFAULT_POOL, memory.new_pool(), pinned):
        block = memory.allocate(512, pool)
        place, graphs = block.address, int(pool == pinned)
        fresh = set(contents(memory, block).tolist())
        assert fresh == {0xFF}, f"bytes of a new block, in a pool with {graphs} graphs"
        contents(memory, block)[:] = 7
        memory.free(block)
        freed = set(memory.view(place, (512,), BYTES).tolist())
        assert freed == {0xFF}, f"bytes of a freed block, in a pool with {graphs} graphs"


def test_a_block_in_use_is_not_free_and_has_a_serial_of_its_own() -> None:
    memory, serials = Memory(16 * MIB), []
    for _ in range(3):
        blocks = [memory.allocate(4096) for _ in range(3)]
        assert [block.free for block in blocks] == [False, False, False]
        serials += [block.serial for block in blocks]
        for block in blocks:
            memory.free(block)
    assert len(set(serials)) == 9, f"different serials of nine allocations: {serials}"


def test_a_bad_request_is_refused_and_changes_nothing() -> None:
    memory = Memory(16 * MIB)
    for nbytes, pool in ((-1, DEFAULT_POOL), (-4096, DEFAULT_POOL), (1, 7)):
        with pytest.raises(ValueError):
            memory.allocate(nbytes, pool)
    assert (memory.reserved_bytes(), memory.allocated_bytes()) == (0, 0)


# ---------------------------------------------------------------- merge


@pytest.mark.catches("neighbours-stay-apart")
def test_a_block_is_joined_with_the_free_blocks_beside_it_and_no_others() -> None:
    sizes = (1, 2, 4, 8, 16)
    for free in ([], [1], [3], [1, 3], [0, 4], [0, 3], [1, 4]):
        memory, blocks = laid_out(*sizes)
        let_go(memory, *(blocks[at] for at in free))
        middle = blocks[2]
        middle.free = True
        covered = [at for at in (1, 2, 3) if at in (2, *free)]
        joined = memory._merge(middle)
        place, end = sum(sizes[: covered[0]]), sum(sizes[: covered[-1] + 1])
        found = (joined.address - FIRST_ADDRESS) // 1024, joined.nbytes // 1024, joined.free
        assert found == (place, end - place, True), (
            f"KiB before the joined block, KiB in it, is it free; block 2 beside free {free}"
        )
        in_order = [(b.address - FIRST_ADDRESS) // 1024 for b in joined.segment.blocks]
        wanted = [sum(sizes[:at]) for at in range(5) if at not in covered[1:]]
        assert in_order == wanted, f"KiB at which the blocks of the segment begin; free: {free}"
        assert any(block is joined for block in joined.segment.blocks)
        left = [block.nbytes // 1024 for block in memory._free[DEFAULT_POOL]]
        assert left == [sizes[at] for at in free if at not in covered], "KiB in the free list"


# ---------------------------------------------------------------- free


@pytest.mark.catches("free-gives-it-to-the-driver")
def test_a_freed_block_stays_mapped_and_is_the_next_ones_place() -> None:
    memory = Memory(16 * MIB)
    first = memory.allocate(3 * MIB)
    place = first.address
    memory.free(first)
    allocated, reserved = memory.allocated_bytes() // MIB, memory.reserved_bytes() // MIB
    assert (allocated, reserved) == (0, 4), "MiB in use, and MiB in the pool"
    memory.view(place, (1,), BYTES)  # a graph that still points here sees no error
    assert memory.allocate(3 * MIB).address == place


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


@pytest.mark.catches("only-what-stays-is-free")
def test_whatever_a_freed_block_is_joined_with_it_is_no_longer_its_owners() -> None:
    for order in ((0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2)):
        memory = Memory(16 * MIB)
        blocks = [memory.allocate(512) for _ in range(3)]
        serials = [block.serial for block in blocks]
        for at in order:
            memory.free(blocks[at])
        owned = [at for at in range(3) if blocks[at].owned_by(serials[at])]
        assert owned == [], f"freed blocks that seem to be in use; freed in order {order}"


def test_freed_memory_is_poison_too_unless_it_is_asked_to_stay_as_it_is() -> None:
    for fill, byte in ((True, 0xFF), (False, 7)):
        memory = Memory(16 * MIB)
        block = memory.allocate(512)
        place = block.address
        contents(memory, block)[:] = 7
        memory.free(block, fill=fill)
        found = set(memory.view(place, (512,), BYTES).tolist())
        assert found == {byte}, f"bytes after free(fill={fill})"


@pytest.mark.catches("free-memory-is-all-alike")
def test_freeing_a_block_does_not_touch_what_its_neighbours_hold() -> None:
    for order in ((0, 2, 1), (2, 0, 1), (0, 1, 2)):
        memory = Memory(16 * MIB)
        blocks = [memory.allocate(512) for _ in range(4)]
        places = [block.address for block in blocks]
        for byte, block in enumerate(blocks):
            contents(memory, block)[:] = byte
        for at in order:
            memory.free(blocks[at], fill=at == 1)  # only the middle one is to be poisoned
        found = [set(memory.view(place, (512,), BYTES).tolist()) for place in places]
        assert found == [{0}, {0xFF}, {2}, {3}], f"bytes of four blocks; freed in order {order}"


def test_what_is_not_in_use_cannot_be_freed_and_nothing_changes() -> None:
    memory = Memory(16 * MIB)
    left, gone, right = (memory.allocate(512) for _ in range(3))
    place = gone.address
    memory.free(gone)
    with pytest.raises(ValueError):
        memory.free(gone)
    memory.free(left)
    stale = Block(place, 512, DEFAULT_POOL, right.segment)
    first = memory.allocate(512)
    now = memory.allocate(512)  # stands where `gone` stood
    contents(memory, now)[:] = 5
    assert now.address == place
    in_use_again = gone is first or gone is now  # a joined block may be any of its parts
    for handle in [stale] if in_use_again else [stale, gone]:
        with pytest.raises(ValueError):
            memory.free(handle)
    assert memory.allocated_bytes() == 3 * 512
    assert set(contents(memory, now).tolist()) == {5}, "bytes of the block that stands there now"
    memory.free(now)
    with pytest.raises(ValueError):
        memory.free(now)


def test_a_device_that_only_counts_touches_no_byte() -> None:
    memory = Memory(2**40, poison=False)
    block = memory.allocate(2**36)  # 64 GiB
    memory.free(block)
    assert block.segment.bytes_on_host is None
    assert memory.reserved_bytes() == 2**36


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
    released = memory.release_cached(pool)
    assert released == SEGMENT_BYTES, "bytes of a pool whose graphs are gone"


def test_the_graphs_of_one_pool_do_not_hold_the_memory_of_another() -> None:
    memory = Memory(16 * MIB)
    mine, theirs = memory.new_pool(), memory.new_pool()
    for pool in (mine, theirs, DEFAULT_POOL):
        memory.free(memory.allocate(MIB, pool))
    memory.pin(mine)
    released = memory.release_cached()
    assert released == 2 * SEGMENT_BYTES, "bytes of the two pools without graphs"
    assert memory.reserved_bytes() == memory.reserved_bytes(mine) == SEGMENT_BYTES


def test_of_one_pool_or_of_all_every_free_segment_is_released() -> None:
    for pool, segments in ((DEFAULT_POOL, 3), (1, 2), (None, 5)):
        memory = Memory(16 * MIB)
        other = memory.new_pool()
        for block in [memory.allocate(2 * MIB, p) for p in (0, 0, other, 0, other)]:
            memory.free(block)
        released = memory.release_cached(pool)
        assert released == segments * SEGMENT_BYTES, f"bytes released of pool {pool}"
        assert memory.reserved_bytes() == (5 - segments) * SEGMENT_BYTES


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


def test_a_graph_fails_once_memory_outside_its_pool_to_which_it_points_was_given_back() -> None:
    device = Device(load_spec("h200"), memory_bytes=64 * MIB)
    x, y = device.upload(np.ones(4, np.float32)), device.empty(4)
    workspace = device.upload(np.ones(2**20, np.float32))  # a segment of its own
    with device.capture() as graph:
        device.launch(k.multiply, y, x, workspace[:4])
    graph.replay()
    device.free(workspace)
    graph.replay()  # its address is still mapped
    released = device.memory.release_cached()
    assert released == 4 * MIB
    with pytest.raises(IllegalAddress):
        graph.replay()


def test_only_wholly_free_segments_go_back_and_then_their_addresses_are_nobodys() -> None:
    memory = Memory(16 * MIB)
    pool = memory.new_pool()
    half, whole, other = (memory.allocate(n, p) for n, p in ((512, 0), (2 * MIB, 0), (512, pool)))
    rest = memory.allocate(512)
    places = [whole.address, other.address]
    for block in (half, whole, other):
        memory.free(block)
    of_pool, of_all = memory.release_cached(pool), memory.release_cached()
    assert of_pool == SEGMENT_BYTES, "bytes of the one pool"
    assert of_all == SEGMENT_BYTES, "bytes of the segment in pool 0 that is wholly free"
    assert memory.reserved_bytes() == SEGMENT_BYTES
    contents(memory, rest)[:] = 1
    for place in places:
        with pytest.raises(IllegalAddress):
            memory.view(place, (1,), BYTES)


def test_a_full_device_first_takes_back_what_is_only_cached() -> None:
    memory = Memory(4 * MIB)
    memory.free(memory.allocate(3 * MIB))
    assert memory.allocate(3 * MIB, memory.new_pool()).nbytes == 3 * MIB
    with pytest.raises(DeviceOutOfMemory):
        memory.allocate(3 * MIB)
    assert memory.allocated_bytes() == 3 * MIB


@pytest.mark.catches("memory-is-memory")
def test_not_even_on_a_full_device_is_memory_of_another_pool_handed_out() -> None:
    memory = Memory(4 * MIB)
    pool = memory.new_pool()
    memory.free(memory.allocate(3 * MIB, pool))
    memory.pin(pool)  # a graph points there
    with pytest.raises(DeviceOutOfMemory):
        memory.allocate(MIB)
    assert memory.allocated_bytes() == 0


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
    for _ in range(8):
        memory, hand = Memory(2**30), ByHand()
        pools = [DEFAULT_POOL, memory.new_pool(), memory.new_pool()]
        held: list[tuple[Block, int]] = []
        for step in range(120):
            move = rng.random()
            if move < 0.02:
                pool = rng.choice([None, *pools])
                released, by_hand = memory.release_cached(pool), hand.release(pool)
                assert released == by_hand, f"bytes released of pool {pool}"
            elif move < 0.55 or not held:
                nbytes = rng.choice([512, 4096, 65_000, 100_000, MIB]) * rng.randint(1, 3)
                nbytes, pool = -(-nbytes // 512) * 512, rng.choice(pools)
                place, block = hand.place(nbytes, pool), memory.allocate(nbytes, pool)
                if place is None:
                    size = -(-nbytes // SEGMENT_BYTES) * SEGMENT_BYTES
                    hand.segments.append((block.address, block.address + size, pool))
                else:
                    moved = block.address - place
                    assert moved == 0, f"bytes from the best fit for {nbytes} of pool {pool}"
                assert (block.nbytes, block.pool) == (nbytes, pool)
                hand.live[block.address] = (block.address + nbytes, pool)
                contents(memory, block)[[0, -1]] = step
                held.append((block, step))
            else:
                block, mark = held.pop(rng.randrange(len(held)))
                first_and_last = contents(memory, block)[[0, -1]].tolist()
                assert first_and_last == [mark, mark], "bytes of a block that nobody else has"
                del hand.live[block.address]
                memory.free(block)
            for pool in pools:
                reserved = sum(end - start for start, end, owner in hand.segments if owner == pool)
                used = sum(end - a for a, (end, owner) in hand.live.items() if owner == pool)
                found = memory.reserved_bytes(pool), memory.allocated_bytes(pool)
                assert found == (reserved, used), f"bytes reserved and in use of pool {pool}"


# ---------------------------------------------------------------- a ladder in one pool


def wide_runner(sizes: list[int], megabytes: int = 512, *, compute: bool = False) -> GraphRunner:
    """y = 4x over 4 MiB of scratch a row. Without `compute` memory is counted and not touched."""
    device = Device(load_spec("h200"), compute=compute, memory_bytes=megabytes * MIB)
    inputs = StaticInputs(device, {"x": ((max(sizes), 4), "float32")})

    def forward(rows: int) -> Buffer:
        with device.scratch() as scratch:
            wide, out = scratch.empty(rows * 2**18, 4), scratch.empty(rows, 4)
            x = inputs.view(rows)["x"]
            double = wide[:rows]
            device.launch(k.scale, double, x, by=2.0)
            device.launch(k.scale, out, double, by=2.0)
            return scratch.keep(out)

    return GraphRunner(device, forward, inputs, sizes)


def pool_mib(runner: GraphRunner, order: list[int] | None = None) -> float:
    """Captures, and says by how much the pool has grown."""
    return sum(report.pool_growth_bytes for report in runner.capture(order).rungs) / MIB


LADDERS = [[1, 2, 4, 8], [3, 5, 6], [1, 8, 9, 10, 16], [7]]


def noting(log: list[int], without: tuple[int, ...] = ()) -> Callable[[int], RungReport]:
    """Captures nothing: notes the rungs that it is given, and finds no memory for some."""

    def capture_rung(rung: int) -> RungReport:
        log.append(rung)
        if rung in without:
            raise DeviceOutOfMemory(f"no room for {rung}")
        return RungReport(rung, 1, 10.0 * rung, rung)

    return capture_rung


@pytest.mark.catches("smallest-first")
def test_rungs_are_captured_and_reported_largest_first_whatever_the_ladder() -> None:
    for rungs in ((1, 2, 4, 8), (3, 5, 6), (9, 1, 16, 8, 10), (7,)):
        tried: list[int] = []
        report = capture_ladder(rungs, noting(tried))
        wanted = sorted(rungs)[::-1]
        assert tried == wanted, f"rungs in the order of their capture, of {rungs}"
        assert report.rungs == [RungReport(r, 1, 10.0 * r, r) for r in wanted]
        assert report == CaptureReport(report.rungs), "nothing is dropped"


def test_an_order_that_is_given_is_kept_to_and_no_list_is_changed() -> None:
    rungs = [1, 8, 2, 4]
    for order in ([2, 8], [], None):
        tried: list[int] = []
        capture_ladder(rungs, noting(tried), order)
        assert tried == ([8, 4, 2, 1] if order is None else order), f"the order {order}"
    assert rungs == [1, 8, 2, 4], "the caller's list"


@pytest.mark.catches("one-rung-too-large-ends-it")
def test_a_rung_that_finds_no_memory_is_dropped_and_all_others_are_tried_once() -> None:
    for without in ((8,), (8, 4), (4,), (1,), (1, 8), (1, 2, 4, 8)):
        tried: list[int] = []
        report = capture_ladder([1, 2, 4, 8], noting(tried, without))
        assert tried == [8, 4, 2, 1], f"no memory for {without}"
        assert report.dropped == [rung for rung in (8, 4, 2, 1) if rung in without]
        captured = [rung.rung for rung in report.rungs]
        assert captured == [rung for rung in (8, 4, 2, 1) if rung not in without]


def test_an_error_other_than_no_memory_is_not_hidden() -> None:
    # the last one is the host's own, of which the device's is a kind
    for error in (CaptureError, ValueError, MemoryError):

        def fails(rung: int, error: type[Exception] = error) -> RungReport:
            raise error(f"at rung {rung}")

        with pytest.raises(error):
            capture_ladder([1, 2], fails)


@pytest.mark.catches("scratch-stays-the-graphs")
def test_the_pool_of_a_whole_ladder_is_as_large_as_that_of_its_top_rung_alone() -> None:
    for sizes in LADDERS:
        alone, ladder = wide_runner(sizes[-1:]), wide_runner(sizes)
        top, rungs = pool_mib(alone), pool_mib(ladder)
        assert rungs == top, f"MiB of the rungs {sizes}, and of {sizes[-1]} alone"
        assert top == 4 * sizes[-1] + 2  # scratch, and a segment for the outputs


def test_smallest_first_the_pool_costs_the_sum() -> None:
    grown = pool_mib(wide_runner([1, 2, 4]), order=[1, 2, 4])
    assert grown == 4 * (1 + 2 + 4) + 2, "MiB: the scratch of every rung, and the outputs' segment"


@pytest.mark.catches("one-rung-too-large-ends-it")
def test_in_little_memory_the_rungs_that_fit_are_captured() -> None:
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


@pytest.mark.catches("scratch-stays-the-graphs", "memory-is-memory")
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
