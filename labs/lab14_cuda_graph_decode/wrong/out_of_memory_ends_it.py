"""out-of-memory-ends-it: lets a rung that finds no memory end the whole capture."""


class GraphRunner:
    def _capture_ladder(self, check, progress):
        report, stream = CaptureReport(), self.backend.Stream()
        for rung in reversed(self.sizes):
            check()
            report.rungs.append(self._capture_rung(rung, stream))
            progress(rung)
        return report
