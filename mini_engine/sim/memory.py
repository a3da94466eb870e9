"""Device memory: an address space, a caching allocator and its pools.

A CUDA graph remembers *addresses*, so much of this course asks who owns which address, and when:

* memory is taken from the device in **segments** and handed out in **blocks** (best fit, split,
  merged again when freed), as PyTorch's caching allocator does;
* a freed block stays in its pool and is handed out again: a graph that still points there reads
  what the next owner wrote. Only `release_cached` gives a segment back; touching it then raises
  `IllegalAddress`;
* a **pool** is a set of segments for its own users only. Graphs that never run at the same time
  may share one: captured largest first, the small ones fit into the memory of the large one.

Every allocation is filled with 0xFF bytes, NaN in every float type and -1 in every integer type, so
that a read before a write shows."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from mini_engine.dispatch.capture_report import CaptureReport, RungReport

# PyTorch's sizes (CUDACachingAllocator: kMinBlockSize, kSmallBuffer, kRoundLarge)
BLOCK_BYTES = 512  # allocations are rounded up to this
SEGMENT_BYTES = 2 * 2**20  # segments are multiples of this
FIRST_ADDRESS = 0x7F00_0000_0000  # where a CUDA process usually sees its device memory
POISON = 0xFF
DEFAULT_POOL = 0


class DeviceOutOfMemory(MemoryError):
    """The device has no room for another segment."""


class IllegalAddress(RuntimeError):
    """An address that no segment holds was touched (CUDA error 700)."""


@dataclass(eq=False)
class Block:
    """A run of bytes inside one segment, either handed out or free."""

    address: int
    nbytes: int
    pool: int
    segment: Segment = field(repr=False)  # an error that shows a block would show all of them
    free: bool = False
    serial: int = 0  # which allocation this is: a stale handle carries an older number

    def owned_by(self, serial: int) -> bool:
        return not self.free and self.serial == serial


@dataclass(eq=False)
class Segment:
    address: int
    nbytes: int
    pool: int
    blocks: list[Block] = field(default_factory=list)  # by address, without holes
    bytes_on_host: np.ndarray | None = field(default=None, repr=False)  # made when first touched

    def storage(self) -> np.ndarray:
        """The bytes of this segment, (nbytes,) uint8. Pages that nobody touches cost nothing."""
        if self.bytes_on_host is None:
            self.bytes_on_host = np.zeros(self.nbytes, np.uint8)
        return self.bytes_on_host


class Memory:
    """The memory of one device, `capacity_bytes` in all. `poison=False` is for a device that only
    counts costs: no byte is ever touched."""

    def __init__(self, capacity_bytes: int, *, poison: bool = True) -> None:
        self.capacity_bytes = capacity_bytes
        self.poison = poison
        self.epoch = 0  # grows when addresses are given back: older views are out of date
        self._segments: list[Segment] = []  # by address
        self._live: dict[int, Block] = {}  # address -> block handed out
        self._free: dict[int, list[Block]] = {DEFAULT_POOL: []}  # of each pool, by `size_order`
        self._graphs: dict[int, int] = {}  # pool -> graphs that remember addresses in it
        self._next_address = FIRST_ADDRESS
        self._next_pool = 1
        self._serial = 0

    def new_pool(self) -> int:
        pool, self._next_pool = self._next_pool, self._next_pool + 1
        self._free[pool] = []
        return pool

    def pin(self, pool: int, graphs: int = 1) -> None:
        """Count `graphs` more (or fewer) graphs whose nodes point into `pool`: while there are
        any, its segments stay mapped."""
        self._graphs[pool] = self._graphs.get(pool, 0) + graphs

    def reserved_bytes(self, pool: int | None = None) -> int:
        """Bytes taken from the device, by `pool` or by all pools."""
        return sum(s.nbytes for s in self._segments if pool is None or s.pool == pool)

    def allocated_bytes(self, pool: int | None = None) -> int:
        return sum(b.nbytes for b in self._live.values() if pool is None or b.pool == pool)

    def allocate(self, nbytes: int, pool: int = DEFAULT_POOL) -> Block:
        """A block of `nbytes`, rounded up to a multiple of `BLOCK_BYTES`, at least one of them. It
        is the free block of `pool` that fits best or, where none fits, the beginning of a new
        segment. The excess is split off and stays free. A block in use is not `free`, has a serial
        that no allocation had before, and stands in `_live` under its address. All its bytes are
        poison, whoever had them before, and no others are written. Raises `ValueError` for a
        negative size or an unknown pool, which changes nothing, and `DeviceOutOfMemory`, which
        changes no block in use; what was only cached has gone back by then (`_grow`)."""
        if nbytes < 0:
            raise ValueError(f"allocation of {nbytes} bytes: the size must not be negative")
        if pool not in self._free:
            raise ValueError(f"pool {pool} does not exist: make it with new_pool()")
        wanted = max(BLOCK_BYTES, round_up(nbytes, BLOCK_BYTES))
        block = self._best_fit(wanted, pool) or self._grow(wanted, pool)
        if block.nbytes > wanted:
            self._split(block, wanted)
        self._serial += 1
        block.free, block.serial = False, self._serial
        self._live[block.address] = block
        if self.poison:
            self._fill(block)
        return block

    def free(self, block: Block, *, fill: bool = True) -> None:
        """Give `block` back to its pool, joined with its free neighbours, to be handed out again.
        Nothing goes back to the device: the address stays mapped. The bytes of `block`, and no
        others, are poisoned, unless `fill` is off: its neighbours may have been freed to stay as
        they are. `block` says that it is `free`, even where another one now covers its bytes. For a
        block that is not in use, raises `ValueError` and changes nothing."""
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        if self.poison and fill:
            self._fill(block)
        block.free = True
        self._insert_free(self._merge(block))

    def release_cached(self, pool: int | None = None) -> int:
        """Give the segments of `pool`, or of all pools, that are one free block back to the device.
        A pool that captured graphs use (`pin`) keeps its segments: the graphs remember addresses in
        them, whether the blocks are free or not. Returns the bytes released."""
        empty = [s for s in self._segments if len(s.blocks) == 1 and s.blocks[0].free]
        mine = [s for s in empty if pool in (None, s.pool)]
        gone = [s for s in mine if not self._graphs.get(s.pool)]
        for segment in gone:
            self._unmap(segment)
        return sum(s.nbytes for s in gone)

    def view(self, address: int, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        """What stands at `address`, as an array that shares the device's bytes. Like a GPU, it does
        not ask who owns the address now. Raises `IllegalAddress` when no segment holds the whole
        range."""
        nbytes = math.prod(shape) * dtype.itemsize
        index = bisect_right(self._segments, address, key=lambda segment: segment.address)
        segment = self._segments[index - 1] if index else None
        if segment is None or address + nbytes > segment.address + segment.nbytes:
            raise IllegalAddress(
                f"an illegal memory access: nothing is mapped at {address:#x}..+{nbytes}. "
                "Was the buffer's memory released after a graph had captured its address?"
            )
        offset = address - segment.address
        return segment.storage()[offset : offset + nbytes].view(dtype).reshape(shape)

    def _fill(self, block: Block) -> None:
        offset = block.address - block.segment.address
        block.segment.storage()[offset : offset + block.nbytes] = POISON

    def _best_fit(self, wanted: int, pool: int) -> Block | None:
        """Take the smallest free block of at least `wanted` bytes out of the free list of `pool`.
        Of equally large ones it is the one at the lowest address. None if none is large enough:
        other pools are not asked. `_free[pool]` is sorted by size, then by address."""
        free = self._free[pool]
        index = bisect_left(free, wanted, key=lambda block: block.nbytes)
        return free.pop(index) if index < len(free) else None

    def _grow(self, wanted: int, pool: int) -> Block:
        """The one block of a new segment for `pool`, not in the free list."""
        nbytes = round_up(wanted, SEGMENT_BYTES)
        if self.reserved_bytes() + nbytes > self.capacity_bytes:
            self.release_cached()  # empty segments of any pool are the last reserve
        if (reserved := self.reserved_bytes()) + nbytes > self.capacity_bytes:
            raise DeviceOutOfMemory(
                f"out of device memory: asked for {wanted:,} bytes in a segment of {nbytes:,}, "
                f"{reserved:,} of {self.capacity_bytes:,} bytes are reserved. "
                "Free buffers, or use fewer KV blocks or smaller capture sizes"
            )
        segment = Segment(self._next_address, nbytes, pool)
        self._next_address += nbytes + SEGMENT_BYTES  # a hole, so that an overrun is caught
        self._segments.append(segment)
        block = Block(segment.address, nbytes, pool, segment, free=True)
        segment.blocks.append(block)
        return block

    def _unmap(self, segment: Segment) -> None:
        """Give a wholly free segment back: its addresses are nobody's from now on."""
        self._remove_free(segment.blocks[0])
        self._segments.remove(segment)
        self.epoch += 1

    def _split(self, block: Block, wanted: int) -> None:
        """Cut `block` down to `wanted` bytes. The rest becomes a free block behind it."""
        excess, blocks = block.nbytes - wanted, block.segment.blocks
        rest = Block(block.address + wanted, excess, block.pool, block.segment, free=True)
        block.nbytes = wanted
        blocks.insert(blocks.index(block) + 1, rest)
        self._insert_free(rest)

    def _merge(self, block: Block) -> Block:
        """Join `block`, which is free, with its free neighbours in the segment. Returns the joined
        block: it is free, covers all of them, and may be any one of them or a new one. A neighbour
        leaves its free list; neither `block` nor the joined block is in one. In the segment's
        `blocks` the joined block stands in the place of all that it covers, so that they stay in
        order and without holes."""
        blocks = block.segment.blocks
        index = blocks.index(block)
        if index + 1 < len(blocks) and blocks[index + 1].free:
            self._remove_free(blocks[index + 1])
            block.nbytes += blocks.pop(index + 1).nbytes
        if index > 0 and blocks[index - 1].free:
            left = blocks[index - 1]
            self._remove_free(left)
            left.nbytes += blocks.pop(index).nbytes
            return left
        return block

    def _insert_free(self, block: Block) -> None:
        insort(self._free[block.pool], block, key=size_order)

    def _remove_free(self, block: Block) -> None:
        free = self._free[block.pool]
        del free[bisect_left(free, size_order(block), key=size_order)]


def size_order(block: Block) -> tuple[int, int]:
    """Free blocks stand by size, and equally large ones by address."""
    return block.nbytes, block.address


def round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


def capture_ladder(
    rungs: Sequence[int],
    capture_rung: Callable[[int], RungReport],
    order: Sequence[int] | None = None,
) -> CaptureReport:
    """Capture every rung once, in the order in which the small ones find room. `rungs` are all
    rungs, in any order; `order`, for a lesson, replaces them and their order. `capture_rung(rung)`
    captures one into the pool that all share and says what that took. A rung for which it raises
    `DeviceOutOfMemory` is dropped, and the others are still tried; any other error is passed on.
    Returns the reports of the captured rungs and the numbers of the dropped ones, each in the order
    in which they were tried."""
    report = CaptureReport()
    for rung in sorted(rungs, reverse=True) if order is None else order:
        try:
            report.rungs.append(capture_rung(rung))
        except DeviceOutOfMemory:
            report.dropped.append(rung)
    return report
