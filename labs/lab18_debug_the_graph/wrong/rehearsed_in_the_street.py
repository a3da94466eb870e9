"""rehearsed-in-the-street: what is given back at once may come from anywhere."""
# to: runner_d.py


class Play:
    def rehearse(self):
        device = self.stage.device
        self.stage.clear()
        for _ in range(REHEARSALS):
            device.free(self.forward(self.rows))
        device.synchronize()
