"""smallest-first: captures the ladder as it is written, from 1 upwards."""


def capture_ladder(rungs, capture_rung, order=None):
    report = CaptureReport()
    for rung in rungs if order is None else order:
        try:
            report.rungs.append(capture_rung(rung))
        except DeviceOutOfMemory:
            report.dropped.append(rung)
    return report
