"""Answers are right. The GPU moves as many bytes for one user as for eight.

Fault: every batch runs at the largest rung.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        rung = max(self.graphs)
        if rung < num_rows:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        return rung
