"""round-down: takes the rung below the batch, the nearest that was captured already."""

from bisect import bisect_right


class CaptureLadder:
    def rung(self, n):
        if n < 0:
            raise ValueError(f"batch of {n} rows")
        if n == 0:
            return 0
        if n > self[-1]:
            return None
        return self[max(0, bisect_right(self, n) - 1)]
