"""one-rung-too-large-ends-it: where the largest rung finds no memory, the others are not tried."""


def capture_ladder(rungs, capture_rung, order=None):
    report = CaptureReport()
    left = list(sorted(rungs, reverse=True) if order is None else order)
    try:
        while left:
            report.rungs.append(capture_rung(left[0]))
            del left[0]
    except DeviceOutOfMemory:
        report.dropped += left
    return report
