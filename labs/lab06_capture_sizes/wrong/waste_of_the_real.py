"""waste-of-the-real: padding as a part of the rows that were asked for."""


class Waste:
    @property
    def wasted_fraction(self):
        return self.padded_rows / self.real_rows if self.real_rows else 0.0
