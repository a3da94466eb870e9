"""Another right way: whole lists made anew, sizes compared one by one, rungs popped off a list."""


class Memory:
    def _best_fit(self, wanted, pool):
        fitting = [block for block in self._free[pool] if block.nbytes >= wanted]
        best = min(fitting, key=lambda block: (block.nbytes, block.address), default=None)
        self._free[pool] = [block for block in self._free[pool] if block is not best]
        return best

    def allocate(self, nbytes, pool=DEFAULT_POOL):
        if nbytes < 0:
            raise ValueError(f"{nbytes} bytes: give 0 or more")
        if self._free.get(pool) is None:
            raise ValueError(f"no pool {pool}")
        wanted = BLOCK_BYTES
        while wanted < nbytes:
            wanted += BLOCK_BYTES * max(1, (nbytes - wanted) // BLOCK_BYTES)
        block = self._best_fit(wanted, pool)
        if block is None:
            block = self._grow(wanted, pool)
        if wanted != block.nbytes:
            self._split(block, wanted)
        self._serial = block.serial = self._serial + 1
        block.free = False
        self._live |= {block.address: block}
        if self.poison:
            self.view(block.address, (wanted,), np.dtype(np.uint8)).fill(POISON)
        return block

    def _merge(self, block):
        row = block.segment.blocks
        first = last = row.index(block)
        while first > 0 and row[first - 1].free:
            first -= 1
        while last + 1 < len(row) and row[last + 1].free:
            last += 1
        for other in row[first : last + 1]:
            if other is not block:
                self._remove_free(other)
        joined = row[first]
        joined.nbytes = sum(other.nbytes for other in row[first : last + 1])
        row[first : last + 1] = [joined]
        return joined

    def free(self, block, *, fill=True):
        owner = self._live.pop(block.address, None)
        if owner is not block:
            if owner is not None:
                self._live[block.address] = owner
            raise ValueError(f"{block.address:#x} was freed before")
        if fill and self.poison:
            self._fill(block)
        block.free = True
        joined = self._merge(block)
        self._free[block.pool] = sorted([*self._free[block.pool], joined], key=size_order)

    def release_cached(self, pool=None):
        before = self.reserved_bytes()
        for segment in list(self._segments):
            asked = pool is None or segment.pool == pool
            in_use = any(not block.free for block in segment.blocks)
            if asked and not in_use and self._graphs.get(segment.pool, 0) == 0:
                self._unmap(segment)
        return before - self.reserved_bytes()


def capture_ladder(rungs, capture_rung, order=None):
    # the next one is last
    left = sorted(set(rungs)) if order is None else list(reversed(order))
    done, dropped = [], []
    while left:
        rung = left.pop()
        try:
            done += [capture_rung(rung)]
        except DeviceOutOfMemory:
            dropped += [rung]
    return CaptureReport(done, dropped)
