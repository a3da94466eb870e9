"""mended-where-it-hurt: full graphs get the runner's memory, the pieces still share everybody's."""
# to: runner_f.py


class Landlord:
    def capture(self):
        for at, (rows, _, _) in reversed(list(enumerate(self.leases))):
            self.clear()
            settled = self.forward(rows)
            self.device.free(settled)
            self.device.synchronize()
            memory = settled.block.pool if self.live else self.estate
            self.leases[at] = rows, *self.signed(rows, memory)
