"""A straight line through times: what something costs at all, and what each node costs more.

In:  numbers of nodes and the µs that they took. Out: base and slope, and two ways to doubt them.
numpy only.

    line((1, 64, 1024), [2.6, 2.7, 4.6])                  # (2.59…, 0.0019…)
    held_out_percent((1, 64, 1024), [2.6, 2.7, 4.6])      # would the others have told?

A residual says how far a line misses a point that it was drawn through: through two points it
misses none. How well a line *predicts*, only a point tells that it has not seen.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

LEAST_US = 1e-3  # no clock here sees less


def line(counts: Sequence[int], times_us: Sequence[float]) -> tuple[float, float]:
    """(base, slope) of the line base + slope × count that fits best, µs and µs a node.

    Best: the sum of ((time - base - slope × count) / time)² is least. These are *relative* misses:
    a graph of 4,096 nodes must not drown one of 16. In the divisor, a time below LEAST_US counts as
    LEAST_US. There are two different counts at least.
    """
    weights = 1 / np.maximum(np.asarray(times_us, dtype=float), LEAST_US)
    slope, base = np.polyfit(counts, times_us, 1, w=weights)
    return float(base), float(slope)


def held_out_percent(counts: Sequence[int], times_us: Sequence[float]) -> list[float]:
    """For each point, how many percent the `line` through the *other* points is off at it.

    100 × (predicted / measured - 1), so +10 means predicted a tenth too long; in the order of the
    points. [] for fewer than three points: no line goes through one.
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
    """The line as a figure of a measurement: with its points, its residuals in µs (time less line),
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
