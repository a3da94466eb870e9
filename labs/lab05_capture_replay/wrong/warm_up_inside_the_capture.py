"""warm-up-inside-the-capture: runs the forward once more where every launch is recorded."""


class GraphRunner:
    def _record(self, rung):
        with self.device.capture(self.pool, f"graph of {rung}") as graph:
            self.device.free(self.forward(rung))  # warm the capture, too
            output = self.forward(rung)
        return graph, output
