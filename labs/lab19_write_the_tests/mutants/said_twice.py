"""Captured in a quiet minute: whoever spoke last before it is answered as if it had spoken again.

Fault: the warm-up runs on the inputs of the last batch.
"""


class GraphRunner:
    def _warm_up(self, rung):
        with self.device.allocating_from(self.pool):
            self.device.free(self.forward(rung))
        self.device.synchronize()
