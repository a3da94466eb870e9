"""cleared-once: clears the inputs before the first capture, and trusts that there is no second."""
# to: runner_d.py


class Play:
    def rehearse(self):
        device = self.stage.device
        if self.film is None:
            self.stage.clear()
        with device.allocating_from(self.stage.wings):
            for _ in range(REHEARSALS):
                device.free(self.forward(self.rows))
        device.synchronize()
