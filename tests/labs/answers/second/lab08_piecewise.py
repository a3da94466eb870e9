"""Another right way: runs by groupby, launches gathered until a cut, a graph only when needed."""

from itertools import groupby


def split_pieces(ops, splitting_ops):
    numbered = enumerate(
        groupby(enumerate(ops), key=lambda place: _is_in(place[1], splitting_ops)),
        start=0 if not ops or not _is_in(ops[0], splitting_ops) else 1,
    )
    pieces = {}
    for number, (splits, places) in numbered:
        at, names = zip(*places, strict=True)
        homes = [id for id, piece in pieces.items() if not piece.splitting]
        if len(names) == 1 and _is_allocation(names[0]) and homes:
            old = pieces[homes[-1]]
            pieces[old.id] = Piece(old.id, False, [*old.ops, *names], [*old.positions, *at])
        else:
            pieces[number] = Piece(number, splits, list(names), list(at))
    return list(pieces.values())


class BreakableGraph:
    def append(self, node):
        if node.label in self.break_on:
            self.launches.append(node)
            return
        if isinstance(self.launches[-1], Node):  # opened late: no graph of nothing
            self.launches.append(Graph(self.device, self.pool, self.name))
        self.launches[-1].append(node)


class PiecewiseGraphRunner:
    def _record(self, rung):
        with self.device.trace(self.pool) as nodes:
            output = self.forward(rung)
        whole, waiting = PiecewiseGraph(self.device), []
        for node in [*nodes, None]:  # None: the end, which closes the last graph
            if node is not None and node.label not in self.splitting_ops:
                waiting.append(node)
                continue
            if waiting:
                whole.launches.append(self._captured(waiting, rung))
                waiting = []
            if node is not None:
                whole.launches.append(node)
        return whole, output

    def _captured(self, nodes, rung):
        with self.device.capture(self.pool, f"{len(nodes)} launches of rung {rung}") as graph:
            for node in nodes:
                self.device.submit(node)
        return graph
