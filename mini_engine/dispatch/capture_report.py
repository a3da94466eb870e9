"""What capturing a ladder took, and which rungs found no memory. Both wings report with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RungReport:
    rung: int  # tokens
    graphs: int  # 1 for FULL, one for each captured piece for PIECEWISE
    time_us: float  # to warm up, record and instantiate
    pool_growth_bytes: int
    driver_bytes: int = 0  # held by the driver for the nodes; unknown, hence 0, in PyTorch


@dataclass
class CaptureReport:
    rungs: list[RungReport] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # rungs that found no memory
    spared: list[int] = field(default_factory=list)  # these too, but another graph serves them

    @property
    def graphs(self) -> int:
        return sum(r.graphs for r in self.rungs)

    @property
    def time_us(self) -> float:
        return sum(r.time_us for r in self.rungs)

    @property
    def bytes(self) -> int:
        """Device memory of all graphs, in the pool and in the driver."""
        return sum(r.pool_growth_bytes + r.driver_bytes for r in self.rungs)

    def add(self, other: CaptureReport) -> None:
        self.rungs += other.rungs
        self.dropped += other.dropped
        self.spared += other.spared

    def lines(self) -> list[str]:
        """A sentence about the rungs that found no memory, or nothing when all went well."""
        said = []
        if self.dropped:
            top = max((r.rung for r in self.rungs), default=0)
            said.append(
                f"out of memory while capturing: dropped rung {_listed(self.dropped)}; "
                + (f"batches above {top} run eagerly" if top else "every batch runs eagerly")
            )
        if self.spared:
            said.append(
                "out of memory while capturing decodes alone, or several steps: rung "
                f"{_listed(self.spared)} does without"
            )
        return said


def _listed(rungs: list[int]) -> str:
    return ", ".join(map(str, rungs))
