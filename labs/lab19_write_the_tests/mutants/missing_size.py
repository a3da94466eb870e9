"""Answers are right. Batches of two cost what batches of four cost, though two was asked for.

Fault: where there are several sizes, the second smallest is left out of the capture.
"""


class GraphRunner:
    def capture(self, order=None):
        report = CaptureReport()
        sizes = sorted(self.ladder.sizes)
        for rung in order or sorted(sizes[:1] + sizes[2:], reverse=True):
            report.rungs.append(self._capture_rung(rung))
        return report
