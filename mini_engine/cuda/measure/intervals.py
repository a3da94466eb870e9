"""How sure a time is: medians with 95% intervals, within one process and across several.

In:  samples, one list a process where there are several. Out: `Interval`. numpy only.

    median_interval(laps)                   # laps of one process: bootstrap (Efron 1979)
    pooled_interval([laps, laps, laps])     # laps of three processes

Laps of one process share what that process got by chance: addresses, the algorithms that a library
picked, the clocks of those minutes. Taken together as if they were independent, 60 laps of three
processes give an interval that is far too narrow. So each process counts once, with its median, and
the interval is Student's t over those medians: their scatter holds both the noise of the laps and
the differences between processes. A bootstrap over three processes would not do: it cannot reach
beyond the smallest and the largest of them, and the truth lies between those in 3 of 4 cases only
(1 - 2 / 2³). `tests/cuda/measure/test_intervals.py` counts how often each covers.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

import numpy as np

from mini_engine.records.rows import Interval

RESAMPLES = 2000
# Student's t, 97.5%, for 1, 2, ... degrees of freedom (any table of it; checked in the tests).
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MAX_PROCESSES = len(STUDENT_T) + 1


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """The median and its 95% bootstrap interval. Raises ValueError for no samples.

    As many samples as there are, drawn from them with replacement, RESAMPLES times: the interval is
    from the 2.5th to the 97.5th percentile of the medians of these draws. One process. The same
    samples and `seed` give the same interval.
    """
    if not len(samples):
        raise ValueError("no samples: nothing was measured")
    values = np.asarray(samples, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high), len(values))


def pooled_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """Of the laps of each process. One process: its median and bootstrap interval.

    Several: each counts once, with the median of its laps. The mean of these n medians stands for
    all, with the interval mean ± t × s / √n: s is their standard deviation (n - 1 in it), t is
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
    return Interval(centre, centre - half, centre + half, sum(map(len, groups)), count)


def pooled_ratio(ones: Sequence[Sequence[float]], others: Sequence[Sequence[float]]) -> Interval:
    """How many times as long the others take: of log ratios, paired lap by lap, process by process.

    log(other / one) of each pair, pooled by `pooled_interval`; median and interval are then raised
    by exp. So what slows both laps of a pair down cancels, and swapping the two gives one over it.
    Raises ValueError unless there are equally many of both.
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
    return Interval(math.exp(found.median), low, high, found.samples, found.processes)
