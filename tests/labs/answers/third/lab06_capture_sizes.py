"""Another right way: numpy throughout; the best rungs by relaxing edges, round by round."""

from itertools import accumulate


class CaptureLadder:
    def rung(self, n):
        if not n >= 0:
            raise ValueError("no batch has fewer rows than none")
        fitting = [size for size in self if size >= n] if n else [0]
        return min(fitting, default=None)

    def waste(self, histogram):
        checked = _checked_histogram(histogram)
        rows = np.fromiter(checked.keys(), np.int64, len(checked))
        steps = np.fromiter(checked.values(), np.int64, len(checked))
        rungs = np.asarray([*self, 0])
        at = np.searchsorted(rungs[:-1], rows)
        eager = at == len(self)
        padding = np.where(eager, 0, rungs[at] - rows)
        return Waste(
            padded_rows=int(padding @ steps),
            real_rows=int(rows @ steps),
            eager_rows=int((rows * steps)[eager].sum()),
            eager_steps=int(steps[eager].sum()),
        )


class Waste:
    @property
    def wasted_fraction(self):
        try:
            return 1 / (1 + self.real_rows / self.padded_rows)
        except ZeroDivisionError:
            return 0.0


def cheapest_rungs(candidates, price, steps, rungs):
    sizes, last = list(candidates), len(candidates)
    before = list(accumulate(steps, initial=0))
    edges = [
        (p, i, price[i - 1] * (before[i] - before[p])) for i in range(1, last + 1) for p in range(i)
    ]
    best = {0: (0.0, ())}  # where one stands -> cost, chosen sizes, of exactly so many rungs
    found = []
    cheapest, choice = float("inf"), None
    while len(found) < min(rungs, last):
        further = {}
        for p, i, cost in edges:
            if p in best:
                way = (best[p][0] + cost, (*best[p][1], sizes[i - 1]))
                if i not in further or way[0] < further[i][0]:
                    further[i] = way
        best = further
        if last in best and best[last][0] < cheapest - 1e-9 * abs(best[last][0]):
            cheapest, choice = best[last]
        found.append(choice)
    return found


def _grid(top):
    return [
        size
        for size in range(1, top + 1)
        if size in {1, 2, 4} or (size % 8 == 0 and size < 256) or (size % 16 == 0 and size >= 256)
    ]


def _decode_sizes(max_num_seqs, query_len):
    full = max_num_seqs * query_len
    if query_len > 1:
        return list(range(full, full + 1)) + [size * query_len for size in _grid(max_num_seqs)]
    return [full]
