"""How sure a figure is: medians with 95% intervals, and straight lines with what they miss.

Laps of one process share what that process got by chance (addresses, algorithms, clocks), and no
interval here holds that. How well a line *predicts*, only a point that it has not seen can tell.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from mini_engine.bench.rows import Interval

LEAST_US = 1e-3  # no clock here sees less
RESAMPLES = 2000


def median_interval(samples: Sequence[float], seed: int = 0) -> Interval:
    """The median and its 95% bootstrap interval (Efron 1979). Raises ValueError for no samples.

    Draws as many samples as there are, with replacement, RESAMPLES times: the interval goes from
    the 2.5th to the 97.5th percentile of the medians of these draws. The same samples and `seed`
    give the same interval; another seed makes other draws.
    """
    if not len(samples):
        raise ValueError("no samples: nothing was measured")
    values = np.asarray(samples, dtype=float)
    picks = np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))
    low, high = np.percentile(np.median(values[picks], axis=1), [2.5, 97.5])
    return Interval(float(np.median(values)), float(low), float(high), len(values))


def paired_ratio(one: Sequence[float], other: Sequence[float]) -> Interval:
    """How many times as long the other takes, from pairs of laps: the median of log(other / one)
    with its interval, turned back into ratios. What slows down both laps of a pair cancels. Raises
    ValueError unless there are equally many of both."""
    found = median_interval([math.log(b / a) for a, b in zip(one, other, strict=True)])
    low, high = math.exp(found.low), math.exp(found.high)
    return Interval(math.exp(found.median), low, high, found.samples)


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
        others = [i for i in range(len(counts)) if i != held]
        base, slope = line([counts[i] for i in others], [times_us[i] for i in others])
        predicted = base + slope * counts[held]
        percents.append(100 * (predicted / max(times_us[held], LEAST_US) - 1))
    return percents


def line_fit(counts: Sequence[int], times_us: Sequence[float]) -> dict[str, Any]:
    """The line as a figure of a measurement: its points, residuals in µs, `held_out_percent`."""
    base, slope = line(counts, times_us)
    residuals = [float(t - (base + slope * n)) for n, t in zip(counts, times_us, strict=True)]
    return {
        "base": base, "slope": slope, "nodes": list(counts), "us": [float(t) for t in times_us],
        "residuals_us": residuals, "held_out_percent": held_out_percent(counts, times_us),
    }  # fmt: skip
