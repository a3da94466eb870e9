"""scratch-stays-the-graphs: what a graph points to is not handed out again while the graph lives."""


class Memory:
    def free(self, block, *, fill=True):
        if self._live.get(block.address) is not block:
            raise ValueError(f"address {block.address:#x} is not allocated: freed twice?")
        del self._live[block.address]
        if self.poison and fill:
            self._fill(block)
        if not self._graphs.get(block.pool):
            block.free = True
            self._insert_free(self._merge(block))
