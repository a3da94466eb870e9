"""What capturing a ladder took, and which rungs found no memory. Both wings report with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RungReport:
    """What capturing one rung took."""

    rung: int  # tokens
    graphs: int  # 1 for FULL, one for each captured piece for PIECEWISE
    time_us: float  # to warm up, record and instantiate
    pool_growth_bytes: int
    driver_bytes: int = 0  # held by the driver for the nodes; unknown, hence 0, in PyTorch


@dataclass
class CaptureReport:
    """What capturing a ladder took, in the order of capture."""

    rungs: list[RungReport] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)  # rungs that found no memory

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
        """Append the report of a ladder that was captured after this one."""
        self.rungs += other.rungs
        self.dropped += other.dropped

    def lines(self) -> list[str]:
        """A sentence about the dropped rungs, or nothing when all went well."""
        if not self.dropped:
            return []
        top = max((r.rung for r in self.rungs), default=0)
        what = ", ".join(map(str, self.dropped))
        return [
            f"out of memory while capturing: dropped rung {what}; "
            + (f"batches above {top} run eagerly" if top else "every batch runs eagerly")
        ]
