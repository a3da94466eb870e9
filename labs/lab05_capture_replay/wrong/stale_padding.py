"""stale-padding: copies the batch's rows and leaves what the last batch put behind them."""


class GraphRunner:
    def run_at(self, rung, num_rows, arrays):
        view = self.inputs.view(rung)
        self.device.copy_batch(
            [(view[name][: len(arrays[name])], np.asarray(arrays[name])) for name in view]
        )
        self.graphs[rung].replay()
        return self.outputs[rung][: min(num_rows, len(self.outputs[rung]))]
