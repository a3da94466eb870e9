"""Answers are right. Three users cost what eight cost, though there is a graph of four.

Fault: a batch that does not fill its size is given the next size up.
"""


class GraphRunner:
    def rung_for(self, num_rows):
        rungs = [r for r in sorted(self.graphs) if r >= num_rows]
        if not rungs:
            raise CaptureError(f"a batch of {num_rows} fits no captured rung")
        return rungs[0] if rungs[0] == num_rows else rungs[:2][-1]
