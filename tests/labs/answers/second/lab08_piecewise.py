"""Another right way: numbers summed up from changes, launches gathered until a cut."""

from itertools import accumulate, pairwise


def number_pieces(splits):
    if not splits:
        return []
    changes = [int(before != after) for before, after in pairwise(splits)]
    return list(accumulate(changes, initial=int(splits[0])))


def without_graphs_of_nothing(numbers, splits, bare):
    ops_of = {}
    for at, number in enumerate(numbers):
        ops_of.setdefault(number, []).append(at)
    target, moved = {}, list(numbers)
    home = None
    for number, ops in ops_of.items():
        alone = len(ops) == 1 and bare[ops[0]]
        if alone and home is not None:
            target[ops[0]] = home
        elif not splits[ops[0]]:
            home = number
    for at, number in target.items():
        moved[at] = number
    return moved


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
        with self.device.capture(self.pool, f"{len(nodes)} launches of {rung}") as graph:
            for node in nodes:
                self.device.submit(node)
        return graph


class PiecewiseGraph:
    def replay(self):
        run = {Graph: Graph.replay, Node: self.device.submit}
        for launch in self.launches:
            run[type(launch)](launch)


class BreakableGraph:
    def append(self, node):
        if node.label in self.break_on:
            fresh = Graph(self.device, self.pool, self.launches[0].name)
            self.launches.extend((node, fresh))
        else:
            self.launches[-1].nodes.append(node)
