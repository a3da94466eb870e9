"""attention-captured-too: cuts at attention, and makes a graph of each piece, of attention as well."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                for position in piece.positions:
                    self.device.submit(nodes[position])
            whole.launches.append(graph)
        return whole, output
