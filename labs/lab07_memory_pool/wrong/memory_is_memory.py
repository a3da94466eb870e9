"""memory-is-memory: before the device is asked for more, any pool's free block will do."""


class Memory:
    def _best_fit(self, wanted, pool):
        for owner in (pool, *self._free):
            for at, block in enumerate(self._free[owner]):
                if block.nbytes >= wanted:
                    del self._free[owner][at]
                    return block
        return None
