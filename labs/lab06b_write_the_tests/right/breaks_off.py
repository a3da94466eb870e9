"""A right runner whose pieces are one capture, broken off at each live op."""


class PiecewiseGraphRunner:
    def _record(self, rung):
        breakable = self.device.capture_breakable(self.splitting_ops, self.pool, f"{rung} rows")
        with breakable as whole:
            output = self.forward(rung)
        return whole, output
