"""One user too many, and the server is gone: an error that nobody was prepared to catch.

Fault: `next()` without a default raises StopIteration.
"""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = next(r for r in sorted(self.graphs) if r >= num_rows)
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][:num_rows]
