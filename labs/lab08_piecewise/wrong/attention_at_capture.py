"""attention-at-capture: runs the splitting ops where it meets them, between two captures."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            inside = [nodes[position] for position in piece.positions]
            if piece.splitting:
                for node in inside:
                    self.device.submit(node)
                continue
            with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                for node in inside:
                    self.device.submit(node)
            whole.launches.append(graph)
        return whole, output
