"""What a check is to run, and the words for its tests. Who waits for it imports no pytest, which
takes a quarter of a second: its process does (session.py).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Job:
    """What to run. `only` keeps the tests that catch this misconception, `hole` those that belong
    to this hole; `first` ends with the first test that fails; `expected`, test -> the fields of its
    outcome, keeps these tests, those that shall fail first, and ends at one that comes out
    otherwise (evidence.same_outcome); `part` (i, n) keeps every n-th of the tests that are left,
    from number i on; after `cpu_s` seconds of CPU time no further test begins."""

    test_file: str
    modules: dict[str, str]  # module -> file
    events: str  # file to write
    memory_gb: float
    test_s: float
    environment: dict[str, str]
    only: str = ""
    hole: int = 0
    first: bool = False
    expected: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    part: tuple[int, int] = (0, 1)
    cpu_s: float = float("inf")


def run_job(job: Job) -> None:
    """Run it here, in a process that serves this run alone."""
    from labs.runner.checks import session

    session.run_job(job)


def sentence(test: str) -> str:
    """The name of a test as words: `test_a_b[3]` becomes `a b (3)`."""
    name, bracket, case = test.partition("[")
    words = re.sub(r"_+", " ", name.removeprefix("test_"))
    return f"{words} ({case.rstrip(']')})" if bracket else words
