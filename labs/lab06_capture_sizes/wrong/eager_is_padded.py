"""eager-is-padded: counts a batch above the top as padded by what it is too large."""


class CaptureLadder:
    def waste(self, histogram):
        real = padded = eager_rows = eager_steps = 0
        for rows, steps in _checked_histogram(histogram).items():
            rung = self.rung(rows)
            real += rows * steps
            if rung is None:
                eager_rows += rows * steps
                eager_steps += steps
                rung = -(-rows // self.top) * self.top
            padded += (rung - rows) * steps
        return Waste(padded, real, eager_rows, eager_steps)
