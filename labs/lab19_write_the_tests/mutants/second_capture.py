"""The first capture did no harm. After the second, last words count double.

Fault: the inputs are cleared before the first capture only.
"""


class GraphRunner:
    def _warm_up(self, rung):
        warmed = vars(self).setdefault("warmed", set())
        if rung not in warmed:
            self.inputs.clear()
        warmed.add(rung)
        with self.device.allocating_from(self.pool):
            self.device.free(self.forward(rung))
        self.device.synchronize()
