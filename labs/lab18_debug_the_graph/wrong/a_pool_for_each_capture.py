"""a-pool-for-each-capture: makes a pool when it captures, and another one the next time."""
# to: runner_f.py


class Landlord:
    def capture(self):
        fresh = self.device.memory.new_pool()
        for at, (rows, _, _) in reversed(list(enumerate(self.leases))):
            self.clear()
            self.device.free(self.forward(rows))
            self.device.synchronize()
            self.leases[at] = rows, *self.signed(rows, fresh)
