"""live-ops-last: replays the graphs one after another, then runs what resisted capture."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole, live = PiecewiseGraph(self.device), []
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            inside = [nodes[position] for position in piece.positions]
            if piece.splitting:
                live += inside
                continue
            with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                for node in inside:
                    self.device.submit(node)
            whole.launches.append(graph)
        whole.launches += live
        return whole, output
