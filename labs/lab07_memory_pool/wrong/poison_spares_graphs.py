"""poison-spares-graphs: a pool that graphs point into is theirs, so nothing is written there."""


class Memory:
    def allocate(self, nbytes, pool=DEFAULT_POOL):
        if nbytes < 0 or pool not in self._free:
            raise ValueError(f"{nbytes} bytes of pool {pool}")
        wanted = max(BLOCK_BYTES, round_up(nbytes, BLOCK_BYTES))
        block = self._best_fit(wanted, pool) or self._grow(wanted, pool)
        if block.nbytes > wanted:
            self._split(block, wanted)
        self._serial += 1
        block.free, block.serial = False, self._serial
        self._live[block.address] = block
        if self.poison and not self._graphs.get(pool):
            self._fill(block)
        return block

    def free(self, block, *, fill=True):
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        if self.poison and fill and not self._graphs.get(block.pool):
            self._fill(block)
        block.free = True
        self._insert_free(self._merge(block))
