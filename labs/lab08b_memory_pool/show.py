"""A map of your pool while a ladder is captured into it, in three ways, and a full card."""

from collections.abc import Sequence

import numpy as np

from mini_engine.dispatch.capture_report import CaptureReport, RungReport
from mini_engine.sim.memory import POISON, Memory, Segment, capture_ladder

MIB, RUNGS, BYTE = 2**20, (1, 2, 4, 8), np.dtype(np.uint8)
SIZES = {"w": 3, "x": 1, "y": 2, "z": 2}  # MiB
LETTER = {1: "a", 2: "b", 4: "c", 8: "d"}


def main() -> None:
    print("each character is 1 MiB of the pool: a letter is a rung's output, a point is free")
    for name, order in (("your order", None), ("smallest first", RUNGS)):
        memory = Memory(256 * MIB)
        report = captured(memory, order)
        print(f"{name}: captured {[one.rung for one in report.rungs]}, the pool grew by "
              f"{[one.pool_growth_bytes // MIB for one in report.rungs]} MiB")  # fmt: skip
        print(f"   given back to the device afterwards: {memory.release_cached() // MIB} MiB")
    memory = Memory(40 * MIB)
    memory.allocate(9 * MIB)  # somebody else's, marked #
    report = captured(memory, None)
    print(f"on a card that is too small: captured {[one.rung for one in report.rungs]}, "
          f"dropped {report.dropped}")  # fmt: skip

    print("\nfour blocks in one segment, freed one after another (what stands in each MiB):")
    memory = Memory(64 * MIB)
    memory.free(memory.allocate(8 * MIB))
    blocks = {letter: memory.allocate(size * MIB) for letter, size in SIZES.items()}
    for letter, block in blocks.items():
        memory.view(block.address, (block.nbytes,), BYTE)[:] = ord(letter)
    for letter in "xzwy":
        memory.free(blocks[letter])
        (segment,) = memory._segments
        stands = [memory.view(segment.address + i * MIB, (1,), BYTE)[0] for i in range(8)]
        cells = "".join("." if byte == POISON else chr(byte) for byte in stands)
        print(f"   without {letter}  |{cells}|  {len(segment.blocks)} blocks")
    print(f"   given back to the device: {memory.release_cached() // MIB} MiB")


def captured(memory: Memory, order: Sequence[int] | None) -> CaptureReport:
    """Each rung takes 3 MiB of scratch a row, frees it, and keeps an output of 1 MiB a row."""
    pool = memory.new_pool()
    outputs: dict[int, int] = {}  # address -> rung

    def capture_rung(rung: int) -> RungReport:
        before = memory.reserved_bytes(pool)
        scratch = memory.allocate(3 * rung * MIB, pool)
        try:
            output = memory.allocate(rung * MIB, pool)
        finally:
            memory.free(scratch)
        outputs[output.address] = rung
        memory.pin(pool)
        print(f"   rung {rung}  {' '.join(drawn(s, outputs) for s in memory._segments)}")
        return RungReport(rung, 1, 0.0, memory.reserved_bytes(pool) - before)

    return capture_ladder(RUNGS, capture_rung, order)


def drawn(segment: Segment, outputs: dict[int, int]) -> str:
    cells = ""
    for block in segment.blocks:
        owner = LETTER.get(outputs.get(block.address, 0), "#")
        cells += ("." if block.free else owner) * max(1, block.nbytes // MIB)
    return f"|{cells}|"


if __name__ == "__main__":
    main()
