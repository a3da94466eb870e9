"""One user too many, and the server is gone: an error that nobody was prepared to catch.

Fault: `next()` without a default raises StopIteration.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        return next(r for r in sorted(self.graphs) if r >= num_rows)
