"""A single user waits longer for a token than two of them do.

Fault: a batch of one runs eagerly.
"""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.inputs.stage(rung, arrays)
        if num_rows == 1:
            with self.device.allocating_from(self.pool):
                output = self.forward(1)
                self.device.copy_(self.outputs[rung], output)
                self.device.free(output)
        else:
            self.graphs[rung].replay()
        return self.outputs[rung][:num_rows]
