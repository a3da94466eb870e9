"""Answers are right. Since the rush hour, a single user has cost what eight of them cost.

Fault: a size once reached is kept, for smaller batches as well.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        reached = vars(self).setdefault("reached", 0)
        rung = next((r for r in sorted(self.graphs) if r >= max(num_rows, reached)), None)
        if rung is None:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        self.reached = rung
        return rung
