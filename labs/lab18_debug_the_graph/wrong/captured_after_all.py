"""captured-after-all: one op of a piece runs live; those before it go into a graph of their own.
# to: runner_e.py
"""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            inside = [nodes[position] for position in piece.positions]
            live = [inside.pop()] if piece.splitting else []
            if inside:
                with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                    for node in inside:
                        self.device.submit(node)
                whole.launches.append(graph)
            whole.launches += live
        return whole, output
