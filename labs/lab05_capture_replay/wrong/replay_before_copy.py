"""replay-before-copy: replays first, so each batch gets the answer of the one before it."""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        self.graphs[rung].replay()
        self.inputs.stage(rung, arrays)
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
