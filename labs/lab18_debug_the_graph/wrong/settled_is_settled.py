"""settled-is-settled: a play that has been filmed once is filmed again without a rehearsal."""
# to: runner_d.py


class Play:
    def rehearse(self):
        if self.film is not None:
            return
        self.stage.clear()
        with self.stage.device.allocating_from(self.stage.wings):
            for _ in range(REHEARSALS):
                self.stage.device.free(self.forward(self.rows))
        self.stage.device.synchronize()
