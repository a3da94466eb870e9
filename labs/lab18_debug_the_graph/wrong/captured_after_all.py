"""captured-after-all: one op of a piece runs live; those before it go into a graph of their own.
# to: runner_e.py
"""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = SegmentedGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            launches = [nodes[position] for position in piece.positions]
            live = [launches.pop()] if piece.splitting else []
            if launches:
                with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
                    for node in launches:
                        self.device.submit(node)
                whole.segments.append(graph)
            whole.segments += live
        return whole, output
