"""every-error-is-memory: whatever a capture fails of, the rung is dropped and the server goes on."""


class GraphRunner:
    def _capture_ladder(self, check):
        report = CaptureReport()
        for rung in reversed(self.rungs):
            check()
            try:
                report.rungs.append(self._capture_rung(rung, self.stream))
            except RuntimeError:
                report.dropped.append(rung)
        return report
