"""a-block-is-handed-out-whole: gives the block that fits best, however much of it is too much."""


class Memory:
    def allocate(self, nbytes, pool=DEFAULT_POOL):
        if nbytes < 0 or pool not in self._free:
            raise ValueError(f"{nbytes} bytes of pool {pool}")
        wanted = max(BLOCK_BYTES, round_up(nbytes, BLOCK_BYTES))
        block = self._best_fit(wanted, pool) or self._grow(wanted, pool)
        self._serial += 1
        block.free, block.serial = False, self._serial
        self._live[block.address] = block
        if self.poison:
            self._fill(block)
        return block
