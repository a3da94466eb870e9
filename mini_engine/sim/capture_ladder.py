"""In which order the rungs of a ladder are captured, and what becomes of one that finds no memory.

In: the rungs, and a function that captures one of them. Out: a report of all.

    report = capture_ladder([1, 2, 4, 8], runner.capture_one)
    [rung.rung for rung in report.rungs]       # 8, 4, 2, 1
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mini_engine.dispatch.capture_report import CaptureReport, RungReport
from mini_engine.sim.memory import DeviceOutOfMemory


def capture_ladder(
    rungs: Sequence[int],
    capture_rung: Callable[[int], RungReport],
    order: Sequence[int] | None = None,
) -> CaptureReport:
    """Capture every rung once, in the order in which the small ones find room, and report.

    `rungs` are all rungs, in any order. `order`, if it is given, is the order to keep to, for a
    lesson; rungs that it leaves out are not captured, and an empty one leaves out all.
    `capture_rung(rung)` captures one into the pool that all share and says what that took. A rung
    for which it raises `DeviceOutOfMemory` is dropped, and the others are still tried; any other
    error is passed on.

    Returns the reports of the captured rungs and the numbers of the dropped ones, each in the order
    in which they were tried.
    """
    report = CaptureReport()
    for rung in sorted(rungs, reverse=True) if order is None else order:
        try:
            report.rungs.append(capture_rung(rung))
        except DeviceOutOfMemory:
            report.dropped.append(rung)
    return report
