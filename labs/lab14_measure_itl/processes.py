"""Laps of several processes: an interval that holds the differences between processes, too.

In:  samples, one list per process. Out: `Interval`.

    pooled_interval([laps, laps, laps])     # laps of three processes

If 60 laps of three processes were taken for independent, the interval would be far too narrow. So
each process counts once, with its median, and the interval is Student's t over those medians: their
scatter holds both the noise of the laps and the differences between processes. A bootstrap over
three processes would not do: it cannot reach beyond the smallest and the largest of them, and the
truth lies between those in only 3 of 4 cases (1 - 2 / 2³).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from mini_engine.bench.intervals import median_interval
from mini_engine.bench.rows import Interval

# Student's t, 97.5%, for 1, 2, ... degrees of freedom (any table of it; checked in the tests).
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MAX_PROCESSES = len(STUDENT_T) + 1


def pooled_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """The interval over the laps of each process. One process: its median and bootstrap interval.

    Several: each counts once, with the median of its laps. The mean of these n medians stands for
    all, with the interval mean ± t × s / √n: s is their standard deviation (over n - 1), t is
    STUDENT_T for n - 1 degrees of freedom. `samples` counts all laps. Raises ValueError for no
    processes, more than MAX_PROCESSES, or one without laps.
    """
    if len(groups) == 1:
        return median_interval(groups[0])
    if not 1 <= len(groups) <= MAX_PROCESSES:
        raise ValueError(f"{len(groups)} processes: expected 1 to {MAX_PROCESSES}")
    if not all(len(group) for group in groups):
        raise ValueError("no samples: one of the processes measured nothing")
    medians = [statistics.median(group) for group in groups]
    centre, count = statistics.fmean(medians), len(medians)
    half = STUDENT_T[count - 2] * statistics.stdev(medians) / math.sqrt(count)
    return Interval(centre, centre - half, centre + half, sum(map(len, groups)))


def pooled_ratio(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Interval:
    """How many times as long the others take, from pairs of laps, process by process.

    log(other / one) of each pair, pooled by `pooled_interval`; exp turns median and interval back
    into ratios. So what slows down both laps of a pair cancels, and swapping the two gives the
    inverse. Raises ValueError unless there are equally many of both in each process, and where
    `pooled_interval` does.
    """
    counts = [len(group) for group in ones], [len(group) for group in others]
    if counts[0] != counts[1]:
        raise ValueError(f"{counts[0]} and {counts[1]} laps: pairs need equally many")
    found = pooled_interval(
        [
            [math.log(b / a) for a, b in zip(one, other, strict=True)]
            for one, other in zip(ones, others, strict=True)
        ]
    )
    low, high = math.exp(found.low), math.exp(found.high)
    return Interval(math.exp(found.median), low, high, found.samples)
