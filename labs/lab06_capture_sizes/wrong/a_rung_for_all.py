"""a-rung-for-all: every batch gets a rung, those above the top the top itself."""


class CaptureLadder:
    def rung(self, n):
        if n < 0:
            raise ValueError(f"batch of {n} rows")
        return 0 if n == 0 else self[min(bisect_left(self, n), len(self) - 1)]
