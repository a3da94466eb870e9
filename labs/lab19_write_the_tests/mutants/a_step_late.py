"""Everybody is answered on what was said in the step before.

Fault: replays first and copies the batch in afterwards.
"""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.graphs[rung].replay()
        self.inputs.stage(rung, arrays)
        return self.outputs[rung][:num_rows]
