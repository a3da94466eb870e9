"""vLLM 55336, from the victim's side: memory that graphs still write was given to another."""

from mini_engine.sim.memory import DEFAULT_POOL


class GraphRunner:
    def _warm_up(self, rung: int) -> None:
        """Run once eagerly, on null inputs, so that nothing is initialised inside the capture."""
        self.inputs.clear()
        self.device.free(self.forward(rung))
        self.device.synchronize()

    def _record(self, rung: int) -> tuple[Graph | PiecewiseGraph, Buffer]:
        """Capture one forward. It takes what eager steps have freed, and no memory of its own."""
        with self.device.capture(DEFAULT_POOL, f"graph of {rung}") as graph:
            output = self.forward(rung)
        return graph, output


class PiecewiseGraphRunner:
    def _record(self, rung: int) -> tuple[PiecewiseGraph, Buffer]:
        """List the launches of one forward, capture those between splitting ops, keep the rest."""
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
