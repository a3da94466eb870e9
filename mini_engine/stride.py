"""Many decode steps at once, in closed form.

While the same n requests decode side by side, each step adds n tokens to what attention reads,
so the GPU needs d us more each step, and the CPU the same as before. The step takes the longer
of the two (the CPU prepares a step while the GPU works, and neither can get ahead):

    step j (j = 0, 1, …) takes  max(cpu_us, gpu_us + j * growth_us)

That is flat while the CPU is the longer one, and a ramp from the crossover on. Flat and ramp have
known sums, so the time of a thousand steps costs as much as the time of one. In: the three
figures of the first step. Out: the time of k steps, how many steps until a moment, and the step
times themselves, added to a histogram.
"""

import math
from dataclasses import dataclass

from mini_engine.metrics import LogHistogram


@dataclass(frozen=True, slots=True)
class Stride:
    """Figures of its first step, in us, all at least 0 and one of the first two above 0."""

    cpu_us: float
    gpu_us: float
    growth_us: float  # of gpu_us, per step

    def total_us(self, steps: int) -> float:
        """Time that the first `steps` steps take."""
        flat = self._flat_steps(steps)
        ramp = steps - flat
        first = self.gpu_us + flat * self.growth_us
        return flat * self.cpu_us + ramp * first + self.growth_us * (ramp * (ramp - 1) // 2)

    def gpu_total_us(self, steps: int) -> float:
        """Time that the GPU is at work in the first `steps` steps."""
        return steps * self.gpu_us + self.growth_us * (steps * (steps - 1) // 2)

    def steps_until(self, us: float) -> int:
        """The least number of steps, at least 1, that take `us` or longer."""
        steps = max(1, math.ceil(self._estimate(us)))
        # The estimate is rounded: settle it by the sums themselves.
        while self.total_us(steps) < us:
            steps += 1
        while steps > 1 and self.total_us(steps - 1) >= us:
            steps -= 1
        return steps

    def add_to(self, histogram: LogHistogram, steps: int, weight: int) -> None:
        """Count the first `steps` step times, each `weight` times (once for each request)."""
        flat = self._flat_steps(steps)
        if flat:
            histogram.add(self.cpu_us, flat * weight)
        if steps > flat:
            first = self.gpu_us + flat * self.growth_us
            histogram.add_ramp(first, self.growth_us, steps - flat, weight)

    def _flat_steps(self, steps: int) -> int:
        """How many of the first `steps` steps wait for the CPU."""
        if self.gpu_us > self.cpu_us:
            return 0
        if self.gpu_us + (steps - 1) * self.growth_us <= self.cpu_us:
            return steps
        return int((self.cpu_us - self.gpu_us) / self.growth_us) + 1

    def _estimate(self, us: float) -> float:
        """The real number k with total_us(k) = us, but for rounding."""
        flat = 0
        if self.gpu_us <= self.cpu_us:
            k = us / self.cpu_us
            flat = self._flat_steps(math.ceil(k) + 1)
            if k <= flat:
                return k
        # Left: ramp * first + growth * ramp * (ramp - 1) / 2 = rest, a quadratic in ramp.
        rest = us - flat * self.cpu_us
        b = self.gpu_us + (flat - 0.5) * self.growth_us
        return flat + 2 * rest / (b + math.sqrt(max(0.0, b * b + 2 * self.growth_us * rest)))
