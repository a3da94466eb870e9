"""onnxruntime 32243: the warm-up is a step like any other, and it counts."""

WARM_UPS = 2  # some kernels settle in their second run


class GraphRunner:
    def _warm_up(self, rung: int) -> None:
        """Run eagerly until every kernel has settled, so that nothing is initialised in a capture.

        It runs in the graphs' memory: no replay is under way, and so it needs none of its own.
        """
        for _ in range(WARM_UPS):
            with self.device.allocating_from(self.pool):
                self.device.free(self.forward(rung))
        self.device.synchronize()
