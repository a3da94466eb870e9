"""Many decode steps at once, in closed form.

While the same n requests decode side by side, each step adds n keys to what attention reads. The
time of a step is the highest of a few lines in the number of keys (`run.StepModel.lines`),
and so it is the highest of a few lines in the number of steps:

    step j (j = 0, 1, …) takes  max over lines of (first_us + j * growth_us)

That is a few straight pieces, each steeper than the one before: flat while the CPU is the slower
one, and a ramp once the GPU is. A ramp has a known sum, so the time of a thousand steps costs as
little to compute as the time of one.

In:  the lines, and how many steps there are at most.
Out: the steps as `Ramp`s, and those of them that begin before a given moment.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mini_engine.step.run import Line


class Ramp(NamedTuple):
    """Steps of first_us, first_us + growth_us, …, `steps` of them: at least one."""

    first_us: float
    growth_us: float
    steps: int

    def total_us(self, steps: int) -> float:
        """Time of the first `steps` steps."""
        return steps * self.first_us + self.growth_us * (steps * (steps - 1) // 2)


def ramps_of(lines: Sequence[Line], steps: int) -> list[Ramp]:
    """The highest line of each of `steps` steps (1 or more), as ramps one after another.

    A line is (us of the first step, growth per step), both 0 or more.
    """
    if len(lines) == 1:
        return [Ramp(*lines[0], steps)]
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


def begun_before(us: float, ramps: Iterable[Ramp]) -> list[Ramp]:
    """The steps that begin before `us` has passed: one at least."""
    begun: list[Ramp] = []
    for ramp in ramps:
        if begun and us <= 0:
            break
        # the step in which the moment lies, and all before it
        steps = 1 + bisect_left(range(1, ramp.steps), us, key=ramp.total_us)
        begun.append(Ramp(ramp.first_us, ramp.growth_us, steps))
        us -= ramp.total_us(steps)
    return begun
