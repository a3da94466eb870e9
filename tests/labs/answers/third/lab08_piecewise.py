"""A third right way: numbers summed from changes; one capture with breaks, without empty graphs."""

from itertools import accumulate, pairwise


def split_pieces(ops, splitting_ops):
    if not ops:
        return []
    splits = [_is_in(op, splitting_ops) for op in ops]
    changes = [int(splits[0]), *(int(a != b) for a, b in pairwise(splits))]
    numbers = list(accumulate(changes))
    home = None
    for number in range(numbers[0], numbers[-1] + 1):
        inside = [at for at, owner in enumerate(numbers) if owner == number]
        if home is not None and len(inside) == 1 and _is_allocation(ops[inside[0]]):
            numbers[inside[0]] = home
        elif not splits[inside[0]]:
            home = number
    return [
        Piece(
            number,
            splits[numbers.index(number)],
            [op for op, owner in zip(ops, numbers, strict=True) if owner == number],
            [at for at, owner in enumerate(numbers) if owner == number],
        )
        for number in dict.fromkeys(numbers)
    ]


class BreakableGraph:
    def append(self, node):
        *_, last = self.launches
        match (node.label in self.break_on, last):
            case (False, Graph()):
                last.nodes.append(node)
            case (False, _):
                fresh = Graph(self.device, self.pool, self.launches[0].name)
                fresh.append(node)
                self.launches.append(fresh)
            case _:
                self.launches = [*self.launches, node]


class PiecewiseGraphRunner:
    def _record(self, rung):
        breaks = self.device.capture_breakable(self.splitting_ops, self.pool, f"rung {rung}")
        with breaks as whole:
            output = self.forward(rung)
        whole.launches = [
            launch for launch in whole.launches if launch in whole.live or len(launch.nodes) > 0
        ]
        return whole, output
