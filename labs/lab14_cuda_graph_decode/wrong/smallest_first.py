"""smallest-first: captures in the order in which the ladder is written."""


class GraphRunner:
    def _capture_ladder(self, check):
        report = CaptureReport()
        for rung in self.rungs:
            check()
            try:
                report.rungs.append(self._capture_rung(rung, self.stream))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                report.dropped.append(rung)
        return report
