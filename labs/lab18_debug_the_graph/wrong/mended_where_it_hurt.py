"""mended-where-it-hurt: the full graphs get memory of their own, the pieces still share everybody's.
# to: runner_f.py
"""

from mini_engine.sim.memory import DEFAULT_POOL


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(DEFAULT_POOL) as nodes:
            output = self.forward(rung)
        whole = PiecewiseGraph(self.device)
        for piece in split_pieces([node.label for node in nodes], self.splitting_ops):
            inside = [nodes[position] for position in piece.positions]
            if piece.splitting:
                whole.launches += inside
                continue
            with self.device.capture(DEFAULT_POOL, f"piece {piece.id} of {rung}") as graph:
                for node in inside:
                    self.device.submit(node)
            whole.launches.append(graph)
        return whole, output
