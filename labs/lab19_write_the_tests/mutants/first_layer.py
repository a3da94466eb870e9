"""In piecewise mode, one attention follows today's contexts, and the next one those of capture.

Fault: cuts at the first splitting ops, and captures the later ones with the rest.
"""


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        pieces = split_pieces([node.label for node in nodes], self.splitting_ops)
        first = next((n for n, piece in enumerate(pieces) if piece.splitting), len(pieces))
        head = [nodes[p] for piece in pieces[:first] for p in piece.positions]
        rest = [nodes[p] for piece in pieces[first + 1 :] for p in piece.positions]
        for number, inside in enumerate((head, rest)):
            if number:
                whole.launches += [nodes[p] for p in pieces[first].positions]
            if inside:
                with self.device.capture(self.pool, f"piece {number} of {rung}") as graph:
                    for node in inside:
                        self.device.submit(node)
                whole.launches.append(graph)
        return whole, output
