"""The memory of emulated graphs: pools of bytes that graphs share, as on a GPU.

As in PyTorch's allocator (c10/cuda/CUDACachingAllocator.cpp: `kMinBlockSize`, `get_free_block`):

* a **block** is in use as long as any tensor in Python views it. When the last of them dies, even
  in the middle of a capture, the block is free and the next result may stand in it;
* a graph that has recorded an address does not keep the block: `GraphPool.alias` gives it a second
  tensor on the same bytes that owns nothing. So later ops, and later graphs of the same pool,
  overwrite a graph's intermediate results, and any output that nobody has kept;
* free blocks are split and merged again, best fit first, inside **segments** that stay with the
  pool, and belong to the stream that they were taken for.

Fresh bytes are 0xFF, NaN in every float type and -1 in every signed integer type, so that a result
read before the first replay shows.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass, field
from math import prod
from weakref import WeakSet, finalize

import numpy as np
import torch
from torch import Tensor

BLOCK_BYTES = 512
POISON = 0xFF


class HostMemory:
    """What all pools together may take: as much as the machine has."""

    def __init__(self) -> None:
        self.capacity_bytes = 16 << 30  # where Python cannot say, as on native Windows
        if hasattr(os, "sysconf"):
            self.capacity_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        self.pools: WeakSet[GraphPool] = WeakSet()

    @property
    def reserved_bytes(self) -> int:
        return sum(pool.reserved_bytes for pool in self.pools)


host_memory = HostMemory()


@dataclass(eq=False)
class Segment:
    """A run of bytes that a pool took, cut into blocks without holes."""

    storage: np.ndarray  # (nbytes,) uint8
    stream: Hashable
    blocks: list[Block] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tensor = torch.from_numpy(self.storage)
        self.start = self.tensor.data_ptr()
        self.blocks.append(Block(self, 0, self.storage.nbytes))


@dataclass(eq=False)
class Block:
    segment: Segment
    offset: int
    nbytes: int
    free: bool = True


class GraphPool:
    """One pool. It is its own handle: what `graph_pool_handle()` returns and `pool=` takes."""

    def __init__(self) -> None:
        self.segments: list[Segment] = []
        self.graphs = 0  # captured and not reset, or being captured
        self.spoiled: str | None = None  # why no other capture may begin in it
        self._returned: deque[Block] = deque()  # finalizers may run anywhere, even in _allocate()
        host_memory.pools.add(self)

    @property
    def reserved_bytes(self) -> int:
        """Bytes of all segments: what the pool costs. Unused ones go when there are no graphs."""
        self._settle()
        return sum(segment.storage.nbytes for segment in self.segments)

    def empty(
        self, size: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, stream: Hashable
    ) -> Tensor:
        """A poisoned tensor for work on `stream`. It owns a block. Raises `OutOfMemoryError`."""
        span = 1 + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
        nbytes = span * dtype.itemsize if prod(size) else 0
        blocks = max(1, -(-nbytes // BLOCK_BYTES))
        block = self._allocate(blocks * BLOCK_BYTES, stream)
        window = block.segment.storage[block.offset : block.offset + block.nbytes]
        # The storage made from `window` keeps it alive, and dies with the last tensor on it.
        finalize(window, self._returned.append, block).atexit = False
        block.free = False
        window.fill(1 if dtype == torch.bool else POISON)  # 0xFF is no legal bool
        storage = torch.from_numpy(window).untyped_storage()
        return torch.empty(0, dtype=dtype).set_(storage, 0, size, stride)

    def alias(self, tensor: Tensor) -> Tensor:
        """A second tensor on the same bytes: what a graph remembers of `tensor`. It owns no block
        of this pool; unlike a graph on a GPU, it keeps memory from elsewhere (inputs, weights)
        alive."""
        storage, offset = tensor.untyped_storage(), tensor.storage_offset()
        for segment in self.segments:
            distance = storage.data_ptr() - segment.start
            if 0 <= distance < segment.storage.nbytes:
                storage = segment.tensor.untyped_storage()
                offset += distance // tensor.dtype.itemsize
                break
        empty = torch.empty(0, dtype=tensor.dtype)
        return empty.set_(storage, offset, tensor.size(), tensor.stride())

    # -- parts ---------------------------------------------------------------------------------

    def _allocate(self, nbytes: int, stream: Hashable) -> Block:
        """The smallest free block of the stream of at least `nbytes`, cut to size."""
        self._settle()
        of_stream = (b for s in self.segments if s.stream is stream for b in s.blocks)
        fitting = (b for b in of_stream if b.free and b.nbytes >= nbytes)
        block = min(fitting, key=lambda b: b.nbytes, default=None) or self._grow(nbytes, stream)
        if block.nbytes > nbytes:
            blocks = block.segment.blocks
            rest = Block(block.segment, block.offset + nbytes, block.nbytes - nbytes)
            block.nbytes = nbytes
            blocks.insert(blocks.index(block) + 1, rest)
        return block

    def _grow(self, nbytes: int, stream: Hashable) -> Block:
        free = host_memory.capacity_bytes - host_memory.reserved_bytes
        if nbytes > free:
            raise torch.OutOfMemoryError(
                f"out of memory: a graph's pool asked for {nbytes:,} bytes, and {free:,} are free: "
                "capture fewer or smaller sizes"
            )
        padded = np.empty(nbytes + BLOCK_BYTES, np.uint8)
        start = -padded.ctypes.data % BLOCK_BYTES  # aligned as on a GPU, so that kernels act alike
        segment = Segment(padded[start : start + nbytes], stream)
        self.segments.append(segment)
        return segment.blocks[0]

    def _settle(self) -> None:
        """Free the blocks whose last tensor has died, and segments that no graph needs."""
        while self._returned:
            self._free(self._returned.popleft())
        if not self.graphs:
            self.segments = [s for s in self.segments if len(s.blocks) > 1 or not s.blocks[0].free]

    def _free(self, block: Block) -> None:
        blocks = block.segment.blocks
        block.free = True
        index = blocks.index(block)
        if index + 1 < len(blocks) and blocks[index + 1].free:
            block.nbytes += blocks.pop(index + 1).nbytes
        if index > 0 and blocks[index - 1].free:
            blocks[index - 1].nbytes += blocks.pop(index).nbytes
