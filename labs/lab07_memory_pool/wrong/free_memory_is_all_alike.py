"""free-memory-is-all-alike: poisons the joined block, and so what was freed to stay as it is."""


class Memory:
    def free(self, block, *, fill=True):
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        block.free = True
        joined = self._merge(block)
        if self.poison and fill:
            self._fill(joined)
        self._insert_free(joined)
