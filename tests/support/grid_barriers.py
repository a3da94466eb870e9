"""What the persistent kernel's machine code (SASS) says of its grid barriers, ahead of time.

In:  a `Compiled` kernel. Out: its barriers in the order of the phases that follow them.

A barrier is, in this order: the program's own barrier, a fence (MEMBAR), an add nobody needs the
result of (REDG), the loads of the next phase's weights, and the polls: a load of the counter
(LDG.E.STRONG.GPU), which a CCTL.IVALL follows since it acquires, in a loop.

Where an instruction waits for a load is written in the machine code: a load names one of six
scoreboards, and an instruction has a mask of those that it waits for (Jia et al. 2018, "Dissecting
the NVIDIA Volta GPU Architecture via Microbenchmarking", arXiv 1804.06826, section 2.1). In the
bits above the 41st of the second word: stall 4, yield 1, scoreboard of the write 3 (7: none), of
the read 3, mask 6.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.kernel_cases import Compiled
from tests.support.machine_code import places

ADD, POLL, ACQUIRE = r"\bREDG\.E\.ADD\.STRONG\.GPU", r"\bLDG\.E\.STRONG\.GPU", r"\bCCTL\.IVALL"
WEIGHTS = r"\bLDG\.E\.EF\.128"  # EF: evict first, as only weights are loaded
WIDE = r"\bLDG\.\S*128"
WRITE, BRANCH = r"\b(STG|ATOMG)\b", r"\bBRA\b"


@dataclass(frozen=True)
class GridBarrier:
    """Places in the listing. `end`: of the phase that follows."""

    kernel: Compiled
    add: int
    poll: int
    passed: int  # the branch that polls again: behind it the barrier is passed
    end: int

    @property
    def wide_loads(self) -> list[int]:
        """16-byte loads that leave between the add and the first poll."""
        return [at for at in places(self.kernel.sass, WIDE) if self.add < at < self.poll]

    @property
    def weights(self) -> list[int]:
        """Of these, weights."""
        return [at for at in self.wide_loads if re.search(WEIGHTS, self.kernel.sass[at])]

    @property
    def bytes_held(self) -> int:
        """By a program, while it waits."""
        return 16 * len(self.wide_loads) * self.kernel.threads

    @property
    def waits_for_its_loads(self) -> list[str]:
        """Instructions up to the last poll that wait for one of them: there should be none."""
        if not self.wide_loads:
            return []
        boards = {(self.kernel.controls[at] >> 5) & 7 for at in self.wide_loads}
        mask = sum(1 << board for board in boards)
        between = range(max(self.wide_loads) + 1, self.passed + 1)
        return [self.kernel.sass[i] for i in between if (self.kernel.controls[i] >> 11) & mask]

    @property
    def instructions(self) -> int:
        """From the barrier to the last write of the phase: lines, each loop's body once."""
        writes = [at for at in places(self.kernel.sass, WRITE) if self.passed < at < self.end]
        return max(writes) - self.passed

    @property
    def block_barriers(self) -> int:
        """Of these, barriers of the program's warps."""
        inside = places(self.kernel.sass[self.passed : self.passed + self.instructions], r"\bBAR\.")
        return len(inside)


def grid_barriers(kernel: Compiled) -> list[GridBarrier]:
    """One for each phase. The first comes at the top of the loop over layers."""
    sass = kernel.sass
    acquired = places(sass, ACQUIRE)
    polls = [at for at in places(sass, POLL) if any(at < a <= at + 2 for a in acquired)]
    adds = places(sass, ADD)
    leaves = max(places(sass, r"\bATOMG\b"))
    found = []
    for i, add in enumerate(adds):
        poll = min(at for at in polls if at > add)
        passed = min(at for at in places(sass, BRANCH) if at > poll and "@!P" in sass[at])
        end = adds[i + 1] if i + 1 < len(adds) else leaves
        found.append(GridBarrier(kernel, add, poll, passed, end))
    return found
