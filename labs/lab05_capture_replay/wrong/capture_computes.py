"""capture-computes: wants a result of the capture, finds garbage, and keeps an eager run's output."""


class GraphRunner:
    def _record(self, rung):
        with self.device.capture(self.pool, f"graph of {rung}") as graph:
            self.forward(rung)
        return graph, self.forward(rung)
