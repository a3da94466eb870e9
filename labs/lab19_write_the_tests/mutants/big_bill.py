"""Answers are right. The GPU moves as many bytes for one user as for eight.

Fault: every batch runs at the largest rung.
"""


class GraphRunner:
    def run(self, num_rows, arrays):
        rung = max(self.graphs)
        if rung < num_rows:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[rung][:num_rows]
