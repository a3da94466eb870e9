"""unordered-side-stream: takes a side stream for a place that waits for the others by itself."""


class GraphRunner:
    def _warm_up(self, rung, stream):
        with self.backend.stream(stream):
            self.forward(rung)
        self.backend.synchronize()
