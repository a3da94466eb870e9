"""Am I launch-bound? A decode step taken apart: bytes, kernels that begin and end, and the CPU."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from mini_engine.step.cards import DeviceSpec
from mini_engine.step.curves import step_floor_us
from mini_engine.step.kernels import StepShape
from mini_engine.step.run import WAYS
from mini_engine.step.step_model import StepModel

SLOWEST = 16.0  # of a host, against the spec's; the fastest is as many times as fast


@dataclass(frozen=True)
class Way:
    """What one way to launch a step is predicted to take, and its 80% interval."""

    itl_us: float
    low_us: float | None = None  # not below the floor; None where no interval is known
    high_us: float | None = None

    @classmethod
    def of(cls, spec: DeviceSpec, itl_us: float, mode: str, batch: int, floor_us: float = 0) -> Way:
        return cls(itl_us, *spec.interval(itl_us, mode, batch, floor_us) or ())


@dataclass(frozen=True)
class Explained:
    """One step, in three parts that sum to `itl_us`."""

    itl_us: float
    measured: bool
    mode: str  # how it was launched, or the way whose prediction is nearest
    floor_us: float  # bytes, as fast as the card reads
    kernels_us: float  # beginnings and ends of kernels, gaps, what the engine does in between
    cpu_us: float  # the GPU waits for the CPU
    host_factor: float | None  # the host's time over the spec's, of a measured eager step
    ways: Mapping[str, Way]

    @property
    def launch_bound(self) -> bool:
        """Whether even the most that a full graph is predicted to take is less."""
        return self.saved()[1] > 0

    def saved(self) -> tuple[float, float, float]:
        """The share of the ITL that a graph saves: predicted, and at the ends of its interval."""
        way = self.ways["FULL"]
        mid, low, high = (1 - (us or way.itl_us) / self.itl_us
                          for us in (way.itl_us, way.high_us, way.low_us))  # fmt: skip
        return mid, low, high


def explain(
    costs: StepModel, batch: int, context: int, itl_us: float | None = None, mode: str | None = None
) -> Explained:
    """Take a step of `batch` requests with `context` tokens apart: a measured one or, without
    `itl_us`, the predicted eager one. `mode`: NONE, PIECEWISE or FULL, of a graph for just this
    batch. A measured eager step also says how fast its host is."""
    shape, spec = StepShape.decode(batch, context), costs.spec
    floor_us = step_floor_us(costs.config, spec, batch, context, costs.stored)

    def predicted(on: DeviceSpec) -> dict[str, float]:
        model = StepModel(costs.config, on, costs.stored)
        return {name: model.itl_us(way, shape) for name, way in WAYS.items()}

    itls, factor = predicted(spec), None
    itl = itl_us or itls[mode or "NONE"]
    like = mode or min(itls, key=lambda name: abs(math.log(itls[name] / itl)))
    if itl_us and like == "NONE":
        factor = host_factor(costs, shape, itl)
        itls = predicted(spec.on_host(factor)) if factor else itls
    ways = {name: Way.of(spec, us, name, batch, floor_us) for name, us in itls.items()}
    floor = min(floor_us, itl)
    # what a full graph takes is not the CPU's, and of a step that ran as one, nothing is
    cpu = 0.0 if like == "FULL" else max(0.0, itl - max(itls["FULL"], floor))
    return Explained(itl, itl_us is not None, like, floor, itl - floor - cpu, cpu, factor, ways)


def host_factor(costs: StepModel, shape: StepShape, itl_us: float) -> float | None:
    """How many times as slow as the spec's a host is on which this eager step takes `itl_us`; None
    where no host makes it that long, as the GPU decides or the factor is above `SLOWEST`."""

    def eager_us(factor: float) -> float:
        spec = costs.spec.on_host(factor)
        return StepModel(costs.config, spec, costs.stored).itl_us("eager", shape)

    low, high = 1 / SLOWEST, SLOWEST
    if not eager_us(low) < itl_us < eager_us(high):
        return None
    for _ in range(40):  # the step only grows with the factor, so halve what it may be
        middle = math.sqrt(low * high)
        low, high = (middle, high) if eager_us(middle) < itl_us else (low, middle)
    return math.sqrt(low * high)
