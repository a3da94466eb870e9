"""fresh-memory-is-zero: hands out zeros, so that nobody sees a read before a write."""


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
        if self.poison:
            self.view(block.address, (block.nbytes,), np.dtype(np.uint8))[:] = 0
        return block
