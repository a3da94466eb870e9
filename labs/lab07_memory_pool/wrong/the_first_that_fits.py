"""the-first-that-fits: takes the block at the lowest address that is large enough."""


class Memory:
    def _best_fit(self, wanted, pool):
        fitting = [block for block in self._free[pool] if block.nbytes >= wanted]
        if not fitting:
            return None
        first = min(fitting, key=lambda block: block.address)
        self._free[pool].remove(first)
        return first
