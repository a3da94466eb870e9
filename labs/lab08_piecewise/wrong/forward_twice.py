"""forward-twice: calls forward once to see where it splits, and again for the launches."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            self.device.free(self.forward(rung))
        pieces = split_pieces([node.label for node in nodes], self.splitting_ops)
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in pieces:
            inside = [nodes[position] for position in piece.positions]
            if piece.splitting:
                whole.launches += inside
                continue
            with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                for node in inside:
                    self.device.submit(node)
            whole.launches.append(graph)
        return whole, output
