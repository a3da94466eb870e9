"""free-gives-it-to-the-driver: what is free goes back to the device at once, to save memory."""


class Memory:
    def free(self, block, *, fill=True):
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        if self.poison and fill:
            self._fill(block)
        block.free = True
        block = self._merge(block)
        self._insert_free(block)
        if len(block.segment.blocks) == 1:
            self._unmap(block.segment)
