"""poison-marks-new-segments: what was handed out before has been seen, so only new memory is filled."""


class Memory:
    def allocate(self, nbytes, pool=DEFAULT_POOL):
        if nbytes < 0 or pool not in self._free:
            raise ValueError(f"{nbytes} bytes of pool {pool}")
        wanted = max(BLOCK_BYTES, round_up(nbytes, BLOCK_BYTES))
        block = self._best_fit(wanted, pool)
        if block is None:
            block = self._grow(wanted, pool)
            if self.poison:
                self._fill(block)
        if block.nbytes > wanted:
            self._split(block, wanted)
        self._serial += 1
        block.free, block.serial = False, self._serial
        self._live[block.address] = block
        return block
