"""In pieces, an op runs before the one that it should follow. So far the answers are right.

Fault: a live op that shares no buffer with the graph before it is moved ahead of it.
"""


class PiecewiseGraphRunner:
    def _record(self, rung):
        whole, output = original_record(self, rung)
        parts = whole.launches
        for at in range(1, len(parts)):
            before, live = parts[at - 1], parts[at]
            if isinstance(before, Graph) and not isinstance(live, Graph):
                used = {buffer.address for node in before.nodes for buffer in node.buffers}
                if not used & {buffer.address for buffer in live.buffers}:
                    parts[at - 1 : at + 1] = [live, before]
        return whole, output


def original_record(self, rung):
    with self.device.trace(self.pool) as nodes:
        output = self.forward(rung)
    whole = PiecewiseGraph(self.device)
    for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
        inside = [nodes[position] for position in piece.positions]
        if piece.splitting:
            whole.launches += inside
            continue
        with self.device.capture(self.pool, f"piece {piece.id} of {rung}") as graph:
            for node in inside:
                self.device.submit(node)
        whole.launches.append(graph)
    return whole, output
