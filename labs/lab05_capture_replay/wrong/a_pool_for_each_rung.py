"""a-pool-for-each-rung: keeps graphs safe from each other, though no two of them run at a time."""


class GraphRunner:
    def capture(self, order=None):
        def in_a_pool_of_its_own(rung):
            self.pool = self.device.memory.new_pool()
            return self._capture_rung(rung)

        return capture_ladder(self.ladder.sizes, in_a_pool_of_its_own, order)
