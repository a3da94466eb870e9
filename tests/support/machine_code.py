"""What a kernel's machine code (SASS) says of its time after `pdl_wait`, counted ahead of time.

In:  the instructions of a kernel for sm_90, in order, as `cuobjdump -sass` prints them.
Out: counts. `Compiled` (kernel_cases.py) has them as properties.

With programmatic dependent launch the weights of a kernel are in flight while the kernel before
ends; what stands between the wait (`ACQBULK`) and the last write to memory is what a layer waits
for. All counts are **static**: lines of the listing, which is what one warp issues if it runs
straight through. The body of a loop counts once, however often it runs, and both sides of a branch
count. So two kernels without loops can be compared, and a kernel with itself; a kernel with a loop
over its context (attention) with another one only with that in mind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

WAIT, RELEASE = r"\bACQBULK\b", r"\bPREEXIT\b"
BARRIER = r"\bBAR\.SYNC"
LOAD = r"\bLD(G|GSTS)\."  # of global memory; LDGSTS copies straight into shared memory
WRITE = r"\b(STG|ATOMG|RED)\b"

_WIDTHS = {"128": 16, "64": 8, "U16": 2, "S16": 2, "U8": 1, "S8": 1}  # bytes; 4 unless it says so


def places(sass: Sequence[str], pattern: str) -> list[int]:
    """Places of the instructions that match."""
    return [i for i, line in enumerate(sass) if re.search(pattern, line)]


def after_wait(sass: Sequence[str]) -> Sequence[str]:
    """The instructions below the wait, up to the last write with it. ValueError without a wait."""
    waits = places(sass, WAIT)
    if len(waits) != 1:
        raise ValueError(
            f"{len(waits)} waits (ACQBULK) in the machine code, expected one: compile for sm_90 "
            "with PDL=True a kernel that calls pdl_wait once"
        )
    return sass[waits[0] + 1 : max(places(sass, WRITE)) + 1]


def loops(sass: Sequence[str]) -> list[Sequence[str]]:
    """The loops, each from the place that a branch goes back to up to that branch. An instruction
    has 16 bytes, so its place tells its address."""
    found = []
    for place, line in enumerate(sass):
        target = re.search(r"\bBRA\b.*\b0x([0-9a-f]+)$", line)
        if target and (first := int(target[1], 16) // 16) < place:
            found.append(sass[first : place + 1])
    return found


def bytes_above_wait(sass: Sequence[str]) -> int:
    """Bytes that one thread loads from global memory above the wait, masked loads too."""
    (wait,) = places(sass, WAIT)
    return sum(_load_bytes(line) for line in sass[:wait] if re.search(LOAD, line))


def trips(sass: Sequence[str]) -> int:
    """Dependent rounds of loads below the wait: how often in a row a warp waits for L2 or HBM.

    Loads that follow each other, none needing another's result, are in flight together: one round.
    An instruction that names a register which such a load fills must wait for it. A load that is
    issued after that instruction leaves a whole latency later: the next round. For copies into
    shared memory (LDGSTS), which fill no register, that instruction is `DEPBAR`.

    The first round begins with the first load below the wait: what was loaded above it has its own
    time. Through shared memory nothing is followed, so a load whose address came that way counts
    as a new round only if the loads before it were used by then, which is so in our kernels.
    """
    rounds, used = 0, True  # has the round in flight been waited for?
    filling: set[int] = set()
    for line in after_wait(sass):
        if filling & _registers(line) or re.search(r"\bDEPBAR\b", line):
            used, filling = True, set()
        if re.search(LOAD, line):
            if used:
                rounds, used = rounds + 1, False
            filling |= _filled(line)
    return rounds


def _load_bytes(line: str) -> int:
    mnemonic = _mnemonic(line)
    return next((size for word, size in _WIDTHS.items() if word in mnemonic.split(".")), 4)


def _mnemonic(line: str) -> str:
    """Without the predicate before it (@!P0)."""
    words = line.split()
    return words[1] if words[0].startswith("@") else words[0]


def _filled(line: str) -> set[int]:
    """Registers that a load fills: its first operand, four bytes each."""
    found = re.search(r"\s(?:P\d|PT)?,?\s*R(\d+)\b", line)
    if found is None or "LDGSTS" in line:
        return set()
    first = int(found.group(1))
    return set(range(first, first + max(1, _load_bytes(line) // 4)))


def _registers(line: str) -> set[int]:
    """All registers that an instruction names. R4 of a 128-bit store or of a tensor core's product
    stands for R4 to R7, R4 of a 64-bit one and R4.64 for R4 and R5."""
    mnemonic = _mnemonic(line)
    wide = 4 if ".128" in mnemonic or "MMA" in mnemonic else 2 if ".64" in mnemonic else 1
    found: set[int] = set()
    for number, pair in re.findall(r"\bR(\d+)\b(\.64)?", line):
        found |= set(range(int(number), int(number) + max(wide, 2 if pair else 1)))
    return found
