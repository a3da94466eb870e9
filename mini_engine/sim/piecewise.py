"""Piecewise graphs: a graph runner for a forward with launches that resist capture.

It cuts the list of launches at these, the *splitting ops*, as vLLM does, captures the pieces
between them as graphs, and runs the splitting ops *live*: launched at each replay."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mini_engine.dispatch.pieces import split_pieces
from mini_engine.sim.capture import PiecewiseGraph
from mini_engine.sim.device import Device
from mini_engine.sim.graphs import Forward, GraphRunner, StaticInputs
from mini_engine.sim.launch import Buffer


class PiecewiseGraphRunner(GraphRunner):
    def __init__(
        self, device: Device, forward: Forward, inputs: StaticInputs, sizes: Sequence[int],
        splitting_ops: Collection[str], *, share_pool: bool = True, pool: int | None = None,
    ) -> None:  # fmt: skip
        """`splitting_ops` are labels of launches; neighbours share a piece, as in vLLM."""
        super().__init__(device, forward, inputs, sizes, share_pool=share_pool, pool=pool)
        self.splitting_ops = frozenset(splitting_ops)

    def _record(self, rung: int) -> tuple[PiecewiseGraph, Buffer]:
        """Record one forward of `rung` rows: graphs, and between them what has to run live.

        Returns what `replay` runs, and the output of that forward, which the replays write. A
        replay runs each launch of the forward once and in its order: those of splitting ops live,
        the others as nodes of graphs. Launches with no splitting op between them share a graph, and
        no graph is empty. Each is captured in `self.pool` under a name that has the rung in it.

        `self.forward` is called once, since each call allocates anew, and nothing executes here.
        Two ways lead there, and both are right: list the launches first and capture what lies
        between the cuts (`Device.trace`), or cut while capturing (`Device.capture_breakable`)."""
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
