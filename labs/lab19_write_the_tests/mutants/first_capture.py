"""Captured late, while people talk: whoever spoke last counts twice. A second capture does no harm.

Fault: the inputs are cleared only where the rung has been captured before.
"""


class GraphRunner:
    def _warm_up(self, rung):
        warmed = vars(self).setdefault("warmed", set())
        if rung in warmed:
            self.inputs.clear()
        warmed.add(rung)
        with self.device.allocating_from(self.pool):
            self.device.free(self.forward(rung))
        self.device.synchronize()
