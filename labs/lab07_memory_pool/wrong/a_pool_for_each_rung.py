"""a-pool-for-each-rung: keeps graphs safe from each other, though no two of them run at a time."""


class GraphRunner:
    def capture(self, order=None):
        report = CaptureReport()
        for rung in order or sorted(self.ladder.sizes, reverse=True):
            self.pool = self.device.memory.new_pool()
            try:
                report.rungs.append(self._capture_rung(rung))
            except DeviceOutOfMemory:
                report.dropped.append(rung)
        return report
