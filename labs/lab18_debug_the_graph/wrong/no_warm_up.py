"""no-warm-up: what does not run cannot count, so nothing runs before the capture."""
# to: runner_d.py


class Play:
    def rehearse(self):
        self.stage.device.synchronize()
