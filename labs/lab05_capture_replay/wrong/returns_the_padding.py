"""returns-the-padding: hands out all rows of the rung."""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung]
