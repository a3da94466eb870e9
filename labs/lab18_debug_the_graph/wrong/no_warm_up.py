"""no-warm-up: what does not run cannot count, so nothing runs before the capture.
# to: runner_d.py
"""


class GraphRunner:
    def _warm_up(self, rung):
        self.device.synchronize()
