"""warm-up-on-the-last-batch: warms up on whatever the inputs hold (as in onnxruntime 32243)."""


class GraphRunner:
    def _warm_up(self, rung):
        with self.device.allocating_from(self.pool):
            self.device.free(self.forward(rung))
        self.device.synchronize()
