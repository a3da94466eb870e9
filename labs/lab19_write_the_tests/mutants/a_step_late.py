"""Everybody is answered on what was said in the step before.

Fault: replays first and copies the batch in afterwards.
"""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = next((r for r in sorted(self.graphs) if r >= num_rows), None)
        if rung is None:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        self.graphs[rung].replay()
        self.inputs.stage(rung, arrays)
        return self.outputs[rung][:num_rows]
