"""libuipc PR 472 in kind: a launch that was listed, and that no replay runs."""


class PiecewiseGraphRunner:
    def _record(self, rung: int) -> tuple[PiecewiseGraph, Buffer]:
        """List the launches of one forward, capture those between splitting ops, keep the rest."""
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            inside = [nodes[position] for position in piece.positions]
            if piece.splitting:
                whole.launches.append(inside[-1])
                continue
            with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                for node in inside:
                    self.device.submit(node)
            whole.launches.append(graph)
        return whole, output
