"""Eight sizes were paid for, and the largest party is always turned away at the door.

Fault: `>` in the place of `>=`. A batch that fills a size runs at the next one, the top at none.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        rung = next((r for r in sorted(self.graphs) if r > num_rows), None)
        if rung is None:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        return rung
