"""What capturing a ladder took, and what found no memory. Both wings report with it."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class RungReport:
    """What capturing one rung took."""

    rung: int  # tokens
    graphs: int  # one, or a piece each
    nodes: int
    warmup_us: float
    capture_us: float  # recording and instantiating
    pool_bytes: int  # by which the pool grew
    driver_bytes: int  # what the driver keeps for the nodes; 0 where nobody can tell


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
        return sum(r.warmup_us + r.capture_us for r in self.rungs)

    @property
    def bytes(self) -> int:
        """Device memory of all graphs: pools and what the driver keeps."""
        return sum(r.pool_bytes + r.driver_bytes for r in self.rungs)

    def add(self, other: CaptureReport) -> None:
        """Count another ladder, captured after this one."""
        self.rungs += other.rungs
        self.dropped += other.dropped

    def lines(self) -> list[str]:
        """What was dropped, in words; nothing when all went well."""
        if not self.dropped:
            return []
        top = max((r.rung for r in self.rungs), default=0)
        what = ", ".join(map(str, self.dropped))
        return [
            f"out of memory while capturing: dropped rung {what}; "
            + (f"batches above {top} run eagerly" if top else "every batch runs eagerly")
        ]
