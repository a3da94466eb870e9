"""the-first-that-fits: takes the block at the lowest address that is large enough."""


class Memory:
    def _best_fit(self, wanted, pool):
        fitting = [entry for entry in self._free[pool] if entry[0] >= wanted]
        if not fitting:
            return None
        first = min(fitting, key=lambda entry: entry[1])
        self._free[pool].remove(first)
        return first[2]
