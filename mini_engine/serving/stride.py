"""Many decode steps at once, in closed form.

While the same n requests decode side by side, each step adds n keys to what attention reads. The
time of a step is the highest of a few lines in the number of keys (`run.StepModel.lines`),
and so it is the highest of a few lines in the number of steps:

    step j (j = 0, 1, …) takes  max over lines of (first_us + j * growth_us)

That is a few straight pieces, each steeper than the one before: flat while the CPU is the slower
one, and a ramp once the GPU is. A ramp has a known sum, so the time of a thousand steps costs as
little to compute as the time of one.

In:  the lines, and how many steps there are at most.
Out: the time that they take, how many of them begin before a given moment, and all the step times,
     added to a histogram.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from mini_engine.serving.metrics import LogHistogram
from mini_engine.step.run import Line


class Ramp(NamedTuple):
    """Steps of first_us, first_us + growth_us, …, `steps` of them."""

    first_us: float
    growth_us: float
    steps: int

    def total_us(self, steps: int) -> float:
        """Time of the first `steps` steps."""
        return steps * self.first_us + self.growth_us * (steps * (steps - 1) // 2)

    def steps_until(self, us: float) -> int:
        """The least number of steps, 1 or more, that take `us` or longer; may exceed `steps`."""
        if us <= self.first_us:
            return 1
        # k * first + growth * k * (k - 1) / 2 = us, solved for k without cancellation.
        b = self.first_us - self.growth_us / 2
        k = 2 * us / (b + math.sqrt(b * b + 2 * self.growth_us * us))
        steps = max(1, math.ceil(k))
        # The root is rounded: let the sums themselves decide.
        while self.total_us(steps) < us:
            steps += 1
        while steps > 1 and self.total_us(steps - 1) >= us:
            steps -= 1
        return steps


class Stride:
    """`steps` decode steps; a line is (us of the first step, growth per step), both 0 or more.

    Raises ValueError unless there is a step and it takes time.
    """

    def __init__(self, lines: Iterable[Line], steps: int) -> None:
        self.steps = steps
        self.ramps = _ramps(list(lines), steps)
        if not self.ramps or self.ramps[0].first_us <= 0:
            raise ValueError(f"{steps} steps of {list(lines)}: give a step that takes time")
        self.total_us = sum([ramp.total_us(ramp.steps) for ramp in self.ramps])

    def cut(self, us: float) -> None:
        """Keep only the steps that begin before `us` has passed: one at least."""
        if us >= self.total_us:
            return
        kept: list[Ramp] = []
        left_us = us
        for ramp in self.ramps:
            steps = min(ramp.steps, ramp.steps_until(left_us))
            kept.append(Ramp(ramp.first_us, ramp.growth_us, steps))
            left_us -= ramp.total_us(steps)
            if left_us <= 0:
                break
        self.ramps = kept
        self.steps = sum([ramp.steps for ramp in kept])
        self.total_us = sum([ramp.total_us(ramp.steps) for ramp in kept])

    def add_to(self, histogram: LogHistogram, weight: int) -> None:
        """Count every step's time `weight` times: once for each request that got a token."""
        for ramp in self.ramps:
            histogram.add_ramp(ramp.first_us, ramp.growth_us, ramp.steps, weight)


def _ramps(lines: list[Line], steps: int) -> list[Ramp]:
    """The highest line of each step, as ramps one after another."""
    if len(lines) == 1:
        return [Ramp(*lines[0], steps)] if steps else []
    ramps: list[Ramp] = []
    done = 0
    while done < steps:
        # Of equally high lines the steepest: it is the highest from the next step on.
        first, growth = max((us + done * rise, rise) for us, rise in lines)
        until = steps
        for us, rise in lines:
            if rise > growth:  # lower now, and higher one day
                catches_up = done + (first - us - done * rise) / (rise - growth)
                until = min(until, max(done, math.floor(catches_up)) + 1)
        ramps.append(Ramp(first, growth, until - done))
        done = until
    return ramps
