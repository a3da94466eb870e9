"""eager-is-not-computed: leaves rows without a graph out of the share, as if nobody ran them."""


class Waste:
    @property
    def wasted_fraction(self):
        computed = self.real_rows - self.eager_rows + self.padded_rows
        return self.padded_rows / computed if computed else 0.0
