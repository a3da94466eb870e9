"""How sure a figure is: medians with 95% intervals, and straight lines with what they miss.

In:  samples, one list per process where there are several; or numbers of nodes and the µs that they
     took; they stay as they are. Out: `Interval`; base and slope of a line, and two ways to doubt
     them. numpy only.

    median_interval(laps)                   # laps of one process: bootstrap (Efron 1979)
    pooled_interval([laps, laps, laps])     # laps of three processes
    line((1, 64, 1024), [2.6, 2.7, 4.6])    # (2.59…, 0.0019…): µs at all, µs a node
    held_out_percent((1, 64, 1024), [2.6, 2.7, 4.6])      # would the others have told?

Laps of one process share what that process got by chance: addresses, the algorithms that a library
picked, the clocks of those minutes. If 60 laps of three processes were taken for independent, the
interval would be far too narrow. So each process counts once, with its median, and the interval is
Student's t over those medians: their scatter holds both the noise of the laps and the differences
between processes. A bootstrap over three processes would not do: it cannot reach beyond the
smallest and the largest of them, and the truth lies between those in only 3 of 4 cases
(1 - 2 / 2³). `tests/bench/test_intervals.py` counts how often each covers.

A residual says how far a line misses a point that it was drawn through; through two points it
misses none. How well a line *predicts*, only a point that it has not seen can tell.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_engine.bench.rows import Interval

LEAST_US = 1e-3  # no clock here sees less
RESAMPLES = 2000
# Student's t, 97.5%, for 1, 2, ... degrees of freedom (any table of it; checked in the tests).
STUDENT_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262)
MAX_PROCESSES = len(STUDENT_T) + 1


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """The median and its 95% bootstrap interval. Raises ValueError for no samples.

    Draws as many samples as there are, with replacement, RESAMPLES times: the interval goes from
    the 2.5th to the 97.5th percentile of the medians of these draws. One process. The same samples
    and `seed` give the same interval; another seed makes other draws.
    """
    if not len(samples):
        raise ValueError("no samples: nothing was measured")
    values = np.asarray(samples, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high), len(values))


def pooled_interval(groups: Sequence[Sequence[float]]) -> Interval:
    """The interval over the laps of each process. One process: its median and bootstrap interval.

    Several: each counts once, with the median of its laps. The mean of these n medians stands for
    all, with the interval mean ± t × s / √n: s is their standard deviation (over n - 1), t is
    STUDENT_T for n - 1 degrees of freedom. `samples` counts all laps, `processes` is n. Raises
    ValueError for no processes, more than MAX_PROCESSES, or one without laps.
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
    return Interval(math.exp(found.median), low, high, found.samples, found.processes)


# ---------------------------------------------------------------- straight lines


def line(counts: Sequence[int], times_us: Sequence[float]) -> tuple[float, float]:
    """(base, slope) of the line base + slope × count that fits best, µs and µs a node.

    Best: the sum of ((time - base - slope × count) / time)² is least. These are *relative* misses:
    a graph of 4,096 nodes must not drown one of 16. As a divisor, a time below LEAST_US counts as
    LEAST_US. There are at least two different counts.
    """
    weights = 1 / np.maximum(np.asarray(times_us, dtype=float), LEAST_US)
    slope, base = np.polyfit(counts, times_us, 1, w=weights)
    return float(base), float(slope)


def held_out_percent(counts: Sequence[int], times_us: Sequence[float]) -> list[float]:
    """For each point, by how many percent the `line` through the *other* points misses it.

    100 × (predicted / measured - 1), so +10 means predicted a tenth too long; in the order of the
    points. A time below LEAST_US divides as LEAST_US here, too. [] for fewer than three points:
    no line is fixed by one.
    """
    if len(counts) < 3:
        return []
    percents = []
    for held in range(len(counts)):
        base, slope = line(_without(counts, held), _without(times_us, held))
        predicted = base + slope * counts[held]
        percents.append(100 * (predicted / max(times_us[held], LEAST_US) - 1))
    return percents


def line_fit(counts: Sequence[int], times_us: Sequence[float]) -> dict[str, Any]:
    """The line as a figure of a measurement: with its points, its residuals in µs (time - line),
    and how far each point is from the line through the others."""
    base, slope = line(counts, times_us)
    residuals = [float(t - (base + slope * n)) for n, t in zip(counts, times_us, strict=True)]
    return {
        "base": base,
        "slope": slope,
        "nodes": list(counts),
        "us": [float(t) for t in times_us],
        "residuals_us": residuals,
        "held_out_percent": held_out_percent(counts, times_us),
    }


def _without(values: Sequence[Any], index: int) -> list[Any]:
    return [value for i, value in enumerate(values) if i != index]
