"""Paged KV memory: which block of the cache holds which token of which request.

The cache has num_blocks x block_size rows. A request's blocks may lie anywhere in it, so no memory
is wasted except the rest of its last block (PagedAttention: Kwon et al. 2023, arXiv 2309.06180).

Block 0 is the **null block** and is never handed out. A graph replayed at a rung above the batch
computes padded rows too, and what they write of K and V goes to block 0. (Kernels that look slots
up in the block table, as `cuda/kernels/fused_attention.py` does, write nothing for them.)

Free blocks are a stack, as in vLLM: those of a request are used again from its tail to its head
(`FreeKVCacheBlockQueue` in vllm/v1/core/kv_cache_utils.py, with prefix caching off)."""

from collections.abc import Sequence

NULL_BLOCK = 0


class OutOfBlocks(RuntimeError):
    """Too few blocks are free. None was handed out: preempt a request and try again."""


def slot_of(block_table: Sequence[int], position: int, block_size: int) -> int:
    """Slot of the KV cache that holds `position`."""
    return block_table[position // block_size] * block_size + position % block_size


def usable_blocks(num_blocks: int) -> list[int]:
    """Every block of a cache of num_blocks (at least 2) that may belong to a request, once each. It
    becomes the pool's stack of free blocks: the last is handed out first, and freed blocks go to
    the end. So a block is soon used again, and a read of stale contents shows up early."""
    return list(range(num_blocks - 1, NULL_BLOCK, -1))


class BlockPool:
    """Hands out blocks 1 .. num_blocks - 1, and takes back all blocks of a request at once.
    `num_blocks` counts the null block: at least 2. `block_size`: tokens in a block, at least 1."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self._free = usable_blocks(num_blocks)
        self._tables: dict[str, tuple[int, ...]] = {}  # of the requests that hold blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def has_room(self, request_id: str, num_tokens: int) -> bool:
        """Whether `allocate` would find the blocks. Changes nothing."""
        return self.blocks_for(num_tokens) - len(self.block_table(request_id)) <= self.num_free

    def allocate(self, request_id: str, num_tokens: int) -> tuple[int, ...]:
        """Grow the request's table until it holds `num_tokens` tokens, and return the table.

        A request may hold no blocks yet. Those that it holds stay in place; the missing ones are
        taken from the end of `self._free` by its `pop`, one after another. If none is missing,
        nothing changes.

        Raises OutOfBlocks if fewer blocks are free than are missing; nothing has changed then,
        `self._tables` included, where only requests that hold blocks stand."""
        table = self._tables.get(request_id, ())
        missing = self.blocks_for(num_tokens) - len(table)
        if missing > len(self._free):
            raise OutOfBlocks(
                f"request {request_id!r}: {num_tokens} tokens need {missing} more blocks of "
                f"{self.block_size}, {len(self._free)} are free: preempt a request first"
            )
        if missing > 0:
            table += tuple(self._free.pop() for _ in range(missing))
            self._tables[request_id] = table
        return table

    def free(self, request_id: str) -> None:
        """Take back every block of the request, tail first. Raises ValueError if it holds none."""
        if request_id not in self._tables:
            raise ValueError(f"request {request_id!r} holds no blocks of this pool")
        self._free.extend(self._tables.pop(request_id))

    def forget(self, request_id: str) -> None:
        """The same for a request that may hold none."""
        if self.block_table(request_id):
            self.free(request_id)

    def block_table(self, request_id: str) -> tuple[int, ...]:
        """Blocks of the request in order of position; empty if it holds none."""
        return self._tables.get(request_id, ())
