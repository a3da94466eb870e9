"""Processes for the tests of labs, forked from one that has imported the heavy packages.

A lab's tests run in a process of their own. A fresh interpreter with torch takes seconds to start,
a fork of one that has it takes milliseconds; a mutation score takes hundreds of runs.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import BaseContext

from labs.runner.cut.catalogue import Lab

NO_COMPILER = "LABS_NO_COMPILER"  # preload.py leaves it out then
TORCH = "labs.runner.checks.preload"
HEAVY = ["numpy", "pytest", "_pytest.assertion.rewrite", "labs.runner.checks.session", TORCH]


def fresh() -> BaseContext:
    """A context whose processes begin anew: slower, and nothing is shared."""
    return multiprocessing.get_context("spawn")


def forks(lab: Lab) -> BaseContext | None:
    """For many runs of one lab: forks of a server, which has PyTorch if the lab needs it, and its
    compiler, which takes as long again, if the lab `compiles`.

    None on systems where a fork of a process with threads is not safe: processes begin anew there.
    """
    if sys.platform != "linux":
        return None
    server = context()
    if "torch" not in lab.packages:
        server.set_forkserver_preload([name for name in HEAVY if name != TORCH])
    if not lab.compiles:
        os.environ[NO_COMPILER] = "1"
    forkserver.ensure_running()
    os.environ.pop(NO_COMPILER, None)
    return server


@cache
def context() -> BaseContext:
    """A context whose processes are forks of one server, which never imports the engine."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    server = multiprocessing.get_context("forkserver")
    server.set_forkserver_preload(HEAVY)
    return server
