"""What a call takes that no clock has to measure: lines of Python, bytes of memory.

The first call may have something to import, so each is called once before it is counted.
"""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections.abc import Callable
from typing import Any


def lines_run(call: Callable[[], object]) -> int:
    """How many lines and calls of Python this takes, in whatever file."""
    seen, before = 0, sys.gettrace()

    def trace(*_: object) -> Any:
        nonlocal seen
        seen += 1
        return trace

    call()
    gc.disable()  # what it collects may be of Python, too
    sys.settrace(trace)
    try:
        call()
    finally:
        sys.settrace(before)
        gc.enable()
    return seen


def peak_bytes(call: Callable[[], object]) -> int:
    """What it has allocated at most, beyond what there was before."""
    call()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
