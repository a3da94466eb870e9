"""capture-computes: copies the output out of the graph's memory when the capture has made it."""


class GraphRunner:
    def _record(self, rung, stream):
        pieces = Pieces(self.backend, self.pool, stream)
        with pieces.capture():
            output = self.forward(rung)
        pieces.output = output.clone()
        return pieces
