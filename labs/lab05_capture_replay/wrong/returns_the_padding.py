"""returns-the-padding: hands out all rows of the rung."""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None:
            raise CaptureError(f"a batch of {num_rows} fits no rung of {sorted(self.graphs)}")
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung]
