"""only-the-allocator-runs-out: knows one error for missing memory, that of PyTorch's allocator."""


class GraphRunner:
    def _capture_ladder(self, check):
        report = CaptureReport()
        for rung in reversed(self.rungs):
            check()
            try:
                report.rungs.append(self._capture_rung(rung, self.stream))
            except torch.OutOfMemoryError:
                report.dropped.append(rung)
        return report
