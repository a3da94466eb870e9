"""a-pool-for-each-rung: gives every graph memory of its own, so that none disturbs another."""


class GraphRunner:
    def _record(self, rung, stream):
        pieces = Pieces(self.backend, self.backend.graph_pool_handle(), stream)
        with pieces.capture():
            pieces.output = self.forward(rung)
        return pieces
