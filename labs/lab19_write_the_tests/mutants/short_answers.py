"""Ten users spoke, eight were answered, and no log says a word of it.

Fault: a batch above the top is cut to the top.
"""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), max(self.graphs))
        self.inputs.stage(rung, {name: array[:rung] for name, array in arrays.items()})
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, rung)]
