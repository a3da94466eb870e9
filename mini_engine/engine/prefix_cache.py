"""Prefix cache: requests that begin with the same tokens share the blocks of that beginning.

K and V of a token depend on all tokens before it. The rules are vLLM's (vllm/v1/core/block_pool.py
and vllm/v1/core/kv_cache_manager.py):

1. Only full blocks are shared. The **key** of a block is a hash of its tokens and of the key before
   it, a chain: equal keys mean equal beginnings.
2. A block gets its key when the step that fills it is scheduled. A request admitted later in the
   same step finds it already: within a layer, all rows write before any row reads.
3. A hit walks the keys from the first on, up to the first one that no block has. It never covers
   the last known token, whose row must be computed to give the next one.
4. A block is free when no table lists it any more. It keeps its K and V, and its key, until it is
   handed out again. Blocks without a key are handed out first; of those with one, the block that
   has been free for longest; of one request, the tail before the head.
5. Two requests that compute the same block side by side keep one each, the older one found first.
"""

from array import array
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256

from mini_engine.engine.batch import RequestState
from mini_engine.engine.blocks import BlockPool, OutOfBlocks, usable_blocks


def block_key(parent: bytes, tokens: Sequence[int]) -> bytes:
    """The key of a block with these tokens, after the block with the key `parent` (b"": none)."""
    return sha256(parent + array("q", tokens).tobytes()).digest()


@dataclass
class Hits:
    """What look-ups came to, in tokens: the hit rate is hit / asked."""

    asked: int = 0  # known tokens of the requests that were admitted, or drafts
    hit: int = 0  # those of them that were in the cache, or were right


class KeyedBlocks:
    """The blocks that no table lists, in the order of their use, and the keys of all blocks."""

    def __init__(self, blocks: Iterable[int]) -> None:
        self._queue = OrderedDict.fromkeys(blocks)  # next to be handed out first
        self._keys: dict[int, bytes] = {}  # of blocks, free or not
        self._blocks: dict[bytes, dict[int, None]] = {}  # with a key, the oldest first

    def __len__(self) -> int:
        return len(self._queue)

    def __iter__(self) -> Iterator[int]:
        """All free blocks, the next to be handed out first."""
        return iter(self._queue)

    def find(self, key: bytes) -> int | None:
        return next(iter(self._blocks.get(key, ())), None)

    def name(self, block: int, key: bytes) -> None:
        self._keys[block] = key
        self._blocks.setdefault(key, {})[block] = None

    def pop(self) -> int:
        """Hand out the next block. It loses its key."""
        block, _ = self._queue.popitem(last=False)
        if block in self._keys:
            self.evict(block)
        return block

    def evict(self, block: int) -> None:
        key = self._keys.pop(block)
        del self._blocks[key][block]
        if not self._blocks[key]:
            del self._blocks[key]

    def remove(self, block: int) -> None:
        """Take a free block that was found out of the queue. It keeps its key."""
        del self._queue[block]

    def extend(self, blocks: Iterable[int], /) -> None:
        """Take back the blocks of a request, its tail first: those without a key to the queue's
        front."""
        unnamed = []
        for block in reversed(tuple(blocks)):
            self._queue[block] = None
            if block not in self._keys:
                unnamed.append(block)
        for block in reversed(unnamed):
            self._queue.move_to_end(block, last=False)


@dataclass
class Sharer:
    """What the pool knows of a request that was looked up: waiting, or with blocks."""

    text: RequestState
    found: tuple[int, ...]  # with its first keys, until its table begins with them
    named: int = 0  # how many first blocks of its table have their key


class SharingPool(BlockPool):
    """A BlockPool whose blocks may stand in several tables at once. Before a request is admitted,
    `look_up` finds what the cache holds of it; `allocate` then begins its table with these blocks.
    A request that is never looked up shares nothing."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        super().__init__(num_blocks, block_size)
        self.blocks = KeyedBlocks(reversed(usable_blocks(num_blocks)))
        self._free = self.blocks  # type: ignore[assignment]  # pops and extends as a list does
        self.owners = [0] * num_blocks  # how many tables list a block
        self._sharers: dict[str, Sharer] = {}

    def look_up(self, request_id: str, text: RequestState) -> int:
        """How many first tokens of a request without blocks the cache holds, in whole blocks. The
        last known token is never among them. Nothing changes until `allocate` asks for more than
        these."""
        found = []
        for index in range((text.num_tokens - 1) // self.block_size):
            block = self.blocks.find(self._key(text, index))
            if block is None:
                break
            found.append(block)
        self._sharers[request_id] = Sharer(text, tuple(found))
        return len(found) * self.block_size

    def has_room(self, request_id: str, num_tokens: int) -> bool:
        """As in BlockPool: blocks that were found need not be taken, but cease to be free."""
        sharer = self._sharers.get(request_id)
        found = sharer.found if sharer else ()
        held = len(self.block_table(request_id)) + len(found)
        revived = sum(self.owners[block] == 0 for block in found)
        return self.blocks_for(num_tokens) - held + revived <= self.num_free

    def allocate(self, request_id: str, num_tokens: int) -> tuple[int, ...]:
        """As in BlockPool, and the table of a request without blocks begins with those found. Every
        block that these tokens fill gets its key, so they must be computed in this step."""
        sharer = self._sharers.get(request_id)
        if sharer and sharer.found:
            if not self.has_room(request_id, num_tokens):
                raise OutOfBlocks(
                    f"request {request_id!r}: {num_tokens} tokens, {self.num_free} blocks are free"
                )
            for block in sharer.found:
                if self.owners[block] == 0:
                    self.blocks.remove(block)
                self.owners[block] += 1
            self._tables[request_id] = sharer.found
            sharer.named, sharer.found = len(sharer.found), ()
        held = len(self.block_table(request_id))
        table = super().allocate(request_id, num_tokens)
        for block in table[held:]:
            self.owners[block] = 1
        if sharer:
            full = min(num_tokens, sharer.text.num_tokens) // self.block_size
            for index in range(sharer.named, full):
                self.blocks.name(table[index], self._key(sharer.text, index))
            sharer.named = max(sharer.named, full)
        return table

    def free(self, request_id: str) -> None:
        """As in BlockPool, but a block that another table lists is not free yet."""
        table = self.block_table(request_id)
        for block in table:
            self.owners[block] -= 1
        if table:
            self._tables[request_id] = tuple(b for b in table if self.owners[b] == 0)
        super().free(request_id)
        self._sharers.pop(request_id, None)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self._sharers.pop(request_id, None)  # of one that waits

    def _key(self, text: RequestState, index: int) -> bytes:
        """The key of a full block of the text; each is computed once."""
        keys = text.block_keys
        while len(keys) <= index:
            start = len(keys) * self.block_size
            tokens = text.token_ids(start, start + self.block_size)
            keys.append(block_key(keys[-1] if keys else b"", tokens))
        return keys[index]
