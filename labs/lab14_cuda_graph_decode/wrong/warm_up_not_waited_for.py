"""warm-up-not-waited-for: takes what has been called for what has been done."""


class GraphRunner:
    def _warm_up(self, rung, stream):
        stream.wait_stream(self.backend.current_stream())
        with self.backend.stream(stream):
            self.forward(rung)
