"""Another right way: a freed block swallows its left neighbour, or all become a new block.

The best fit is searched backwards, refusals have other words, and recursion captures the ladder.
"""


class Memory:
    def _best_fit(self, wanted, pool):
        free, best = self._free[pool], None
        for at in reversed(range(len(free))):
            if free[at].nbytes >= wanted:
                best = at
        if best is None:
            return None
        block = free[best]
        del free[best]
        return block

    def allocate(self, nbytes, pool=DEFAULT_POOL):
        if not (nbytes >= 0 and pool in self._free):
            raise ValueError("neither negative sizes nor unknown pools")
        units = (nbytes + BLOCK_BYTES - 1) // BLOCK_BYTES or 1
        found = self._best_fit(units * BLOCK_BYTES, pool)
        block = found if found is not None else self._grow(units * BLOCK_BYTES, pool)
        excess = block.nbytes - units * BLOCK_BYTES
        if excess:
            self._split(block, block.nbytes - excess)
        block.free = False
        block.serial = self._serial = self._serial + 1
        self._live[block.address] = block
        if not self.poison:
            return block
        self._fill(block)
        return block

    def _merge(self, block):
        row = block.segment.blocks
        at = next(i for i, other in enumerate(row) if other is block)
        left = row[at - 1] if at and row[at - 1].free else None
        right = row[at + 1] if at < len(row) - 1 and row[at + 1].free else None
        if left is not None and right is None:  # the block that was freed takes its place
            self._remove_free(left)
            row.remove(left)
            block.address, block.nbytes = left.address, block.nbytes + left.nbytes
            return block
        parts = [part for part in (left, block, right) if part is not None]
        for part in parts:
            if part is not block:
                self._remove_free(part)
        size = sum(part.nbytes for part in parts)
        joined = Block(parts[0].address, size, block.pool, block.segment, free=True)
        first = row.index(parts[0])
        row[first : first + len(parts)] = [joined]
        return joined

    def free(self, block, *, fill=True):
        if block not in self._live.values():
            raise ValueError("this block is in nobody's use")
        self._live = {at: other for at, other in self._live.items() if other is not block}
        block.free = True
        if fill and self.poison:
            start = block.address - block.segment.address
            block.segment.storage()[start : start + block.nbytes] = POISON
        self._insert_free(self._merge(block))

    def release_cached(self, pool=None):
        pools = [pool] if pool is not None else sorted({s.pool for s in self._segments})
        released = 0
        for owner in pools:
            if self._graphs.get(owner, 0) > 0:
                continue
            for segment in [s for s in self._segments if s.pool == owner]:
                if sum(block.nbytes for block in segment.blocks if block.free) == segment.nbytes:
                    released += segment.nbytes
                    self._unmap(segment)
        return released


def capture_ladder(rungs, capture_rung, order=None):
    def capture_all(left):
        if not left:
            return CaptureReport()
        first = CaptureReport()
        try:
            first.rungs = [capture_rung(left[0])]
        except DeviceOutOfMemory:
            first.dropped = [left[0]]
        first.add(capture_all(left[1:]))
        return first

    if order is None:
        order = [-rung for rung in sorted(-r for r in rungs)]
    return capture_all(tuple(order))
