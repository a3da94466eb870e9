"""In piecewise mode, attention is still planned for the batch of the first minute.

Fault: captures the ops that were to run live, as if there were no pieces.
"""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.capture(self.pool, f"graph of {rung}") as graph:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        whole.launches.append(graph)
        return whole, output
