"""smallest-first: captures the ladder as it is written, from 1 upwards."""


class GraphRunner:
    def capture(self, order=None):
        report = CaptureReport()
        for rung in order or self.ladder.sizes:
            try:
                report.rungs.append(self._capture_rung(rung))
            except DeviceOutOfMemory:
                report.dropped.append(rung)
        return report
