"""pools-not-shared: memory of its own for every graph, so that none can hurt another."""
# to: runner_f.py


class Landlord:
    def capture(self):
        for at, (rows, _, _) in reversed(list(enumerate(self.leases))):
            self.clear()
            own = self.device.memory.new_pool()
            with self.device.allocating_from(own):
                self.device.free(self.forward(rows))
            self.device.synchronize()
            self.leases[at] = rows, *self.signed(rows, own)
