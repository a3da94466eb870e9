"""A ladder in words: what capturing took, which rungs found no memory, why a batch runs where."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.dispatch.modes import CUDAGraphMode


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
        dropped, spared = (", ".join(map(str, of)) for of in (self.dropped, self.spared))
        said: list[str] = []
        top = max((r.rung for r in self.rungs), default=0)
        if dropped:
            rest = f"batches above {top} run eagerly" if top else "every batch runs eagerly"
            said.append(f"out of memory while capturing: dropped rung {dropped}; {rest}")
        if spared:
            which = "decodes alone, or several steps"
            said.append(f"out of memory while capturing {which}: rung {spared} does without")
        return said


def explain_batch(dispatcher: GraphDispatcher, batch: int) -> dict[str, str]:
    """Why a decode batch runs at its rung, and how the dispatcher runs it."""
    most, query_len = dispatcher.max_num_seqs, dispatcher.decode_query_len
    if batch > most:
        raise ValueError(f"--batch {batch}: no step has more than {most}: raise --max-num-seqs")
    rows, says = batch * query_len, "Without graphs every batch runs eagerly, unpadded."
    decode, mixed = dispatcher.dispatch(batch, rows, query_len), dispatcher.dispatch(batch, rows)
    if dispatcher.sizes:
        says = CaptureLadder(dispatcher.sizes).explain(rows)
        whole = decode.mode is CUDAGraphMode.FULL or rows > dispatcher.sizes[-1]
        if dispatcher.mode.decode_mode() is CUDAGraphMode.FULL and not whole:
            says += f" No full graph holds {batch} requests within max_num_seqs {most}: "
            says += f"capture {rows} itself to have one."
    if query_len > 1:
        says = f"{batch} requests of {query_len} tokens are a batch of {rows} rows. {says}"
    told = [f"{way.mode}, {way.num_tokens} rows" for way in (decode, mixed)]
    return {"explanation": says, "decode": told[0], "mixed": told[1]}


def in_runs(sizes: Sequence[int]) -> str:
    """1, 2, 4, 8 … 256 (every 8). Fewer than four in a row are told one by one."""
    words = list[str]()
    while sizes:
        first, step = sizes[0], sizes[min(1, len(sizes) - 1)] - sizes[0]
        ends = (at for at, size in enumerate(sizes) if size != first + at * step)
        run = next(ends, len(sizes))
        every = f" (every {step})" if step > 1 else ""
        words.append(f"{first} … {sizes[run - 1]}{every}" if run > 3 else str(first))
        sizes = sizes[run if run > 3 else 1 :]
    return ", ".join(words)
