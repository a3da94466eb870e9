"""In a full house all is well. Later, a few users get answers that were given in the rush hour.

Fault: every rung's answer is read from the buffer of the largest.
"""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[max(self.graphs)][:num_rows]
