"""only-what-stays-is-free: marks the joined block, since the others are no blocks any more."""


class Memory:
    def free(self, block, *, fill=True):
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        if self.poison and fill:
            self._fill(block)
        joined = self._merge(block)
        joined.free = True
        self._insert_free(joined)
