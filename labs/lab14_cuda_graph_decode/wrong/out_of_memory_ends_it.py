"""out-of-memory-ends-it: lets a rung that finds no memory end the whole capture."""


class GraphRunner:
    def _capture_ladder(self, check):
        report = CaptureReport()
        for rung in reversed(self.rungs):
            check()
            report.rungs.append(self._capture_rung(rung, self.stream))
        return report
