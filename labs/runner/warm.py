"""Processes for the tests of labs, forked from one that has imported the heavy packages.

A lab's tests run in a process of their own. A fresh interpreter with torch takes seconds to start,
a fork of one that has it takes milliseconds; a mutation score takes hundreds of runs.
"""

from __future__ import annotations

import multiprocessing
import os
from functools import cache
from multiprocessing.context import BaseContext

HEAVY = [
    "numpy",
    "pytest",
    "_pytest.assertion.rewrite",
    "labs.runner.session",
    "labs.runner.preload",
]


@cache
def context() -> BaseContext:
    """A context whose processes are forks of one server, which never imports the engine."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(HEAVY)
    return server
