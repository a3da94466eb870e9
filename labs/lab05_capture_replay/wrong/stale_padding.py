"""stale-padding: copies the batch's rows and leaves what the last batch put behind them."""


class StaticInputs:
    def stage(self, rows, arrays):
        view = self.view(rows)
        self.device.copy_batch(
            [(view[name][: len(arrays[name])], np.asarray(arrays[name])) for name in view]
        )
