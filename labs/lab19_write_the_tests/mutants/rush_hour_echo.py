"""In a full house all is well. Later, a few users get answers that were given in the rush hour.

Fault: every rung's answer is read from the buffer of the largest.
"""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.inputs.stage(rung, arrays)
        self.graphs[rung].replay()
        return self.outputs[max(self.graphs)][:num_rows]
