"""Another right way: plain loops, and the best rungs by remembering what was searched."""

from functools import cache


class CaptureLadder:
    def rung(self, n):
        if n < 0:
            raise ValueError(f"{n} rows")
        for size in (0, *self):
            if size >= n:
                return size
        return None

    def waste(self, histogram):
        checked = _checked_histogram(histogram)
        runs = [(rows, steps, self.rung(rows)) for rows, steps in checked.items()]
        eager = [(rows, steps) for rows, steps, rung in runs if rung is None]
        return Waste(
            padded_rows=sum((rung - rows) * steps for rows, steps, rung in runs if rung),
            real_rows=sum(rows * steps for rows, steps, _ in runs),
            eager_rows=sum(rows * steps for rows, steps in eager),
            eager_steps=sum(steps for _, steps in eager),
        )


class Waste:
    @property
    def wasted_fraction(self):
        if self.padded_rows == 0:
            return 0.0
        return 1 - self.real_rows / (self.real_rows + self.padded_rows)


def cheapest_rungs(candidates, price, steps, rungs):
    @cache
    def best(last, left):
        """(cost, rungs, choice) of all steps up to candidate `last`, which is a rung."""
        alone = (price[last] * sum(steps[: last + 1]), 1, (candidates[last],))
        ways = [alone]
        for before in range(last if left > 1 else 0):
            cost, count, choice = best(before, left - 1)
            cost += price[last] * sum(steps[before + 1 : last + 1])
            ways.append((cost, count + 1, (*choice, candidates[last])))
        least = min(way[0] for way in ways)
        close = [way for way in ways if way[0] <= least * (1 + 1e-9)]
        return min(close, key=lambda way: way[1])

    most = min(rungs, len(candidates))
    return [best(len(candidates) - 1, n)[2] for n in range(1, most + 1)]


def _grid(top):
    sizes, size = [], 1
    while size <= top:
        sizes.append(size)
        size += size if size < 8 else 8 if size < 256 else 16
    return sizes


def _decode_sizes(max_num_seqs, query_len):
    if query_len == 1:
        return [max_num_seqs]
    return sorted({query_len * n for n in {max_num_seqs, *_grid(max_num_seqs)}})
