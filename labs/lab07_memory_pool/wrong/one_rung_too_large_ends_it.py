"""one-rung-too-large-ends-it: where the largest rung finds no memory, the others are not tried."""


class GraphRunner:
    def capture(self, order=None):
        report = CaptureReport()
        rungs = list(order or sorted(self.ladder.sizes, reverse=True))
        try:
            while rungs:
                report.rungs.append(self._capture_rung(rungs[0]))
                del rungs[0]
        except DeviceOutOfMemory:
            report.dropped += rungs
        return report
