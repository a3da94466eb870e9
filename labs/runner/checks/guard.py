"""Limits on the process that runs a learner's code, and the place in the code where they struck.

A test that computes for longer than its time, or waits for longer than `WAIT_S`, ends the process,
after an event with the learner's line:

    {"event": "loop", "test": …, "seconds": …, "where": …, "line": …, "inputs": …}

A crash in compiled code leaves a traceback in the file of `faulthandler`, which `place_of` reads.
"""

from __future__ import annotations

import contextlib
import faulthandler
import linecache
import multiprocessing
import os
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import IO

from labs.runner.checks.evidence import held, same

IMPORT_CPU_S = 25.0  # of all imports, PyTorch's among them
WAIT_S = 45.0  # of waiting, for a lock that nobody gives back
TRACE_S = 4.0  # after a test's time is over
TICK_S = 0.25


class Guard:
    """One for a process. `test` is told of each test that begins; it may compute for `test_s`."""

    def __init__(self, files: list[str], write: Callable[..., None], test_s: float) -> None:
        self.files, self.write, self.test_s = files, write, test_s
        self.name = ""
        self.limit_s = IMPORT_CPU_S
        self.clock = _clock_of_this_thread()
        self.cpu, self.wall = self.clock(), time.monotonic()
        self.log: IO[str] | None = None

    def test(self, name: str) -> None:
        """A test begins: its time counts from here."""
        self.name, self.limit_s = name, self.test_s
        self.cpu, self.wall = self.clock(), time.monotonic()
        if self.log is not None:  # a loop in compiled code lets no other thread in: leave a trace
            faulthandler.dump_traceback_later(self.test_s + TRACE_S, file=self.log)

    def watch(self, crash_log: str) -> None:
        """Begin: end the process with its parent, or when a test takes too long. Tracebacks of
        crashes (a segmentation fault, an abort) go into the file `crash_log`."""
        self.log = open(crash_log, "w", encoding="utf-8")  # noqa: SIM115  open until the end
        faulthandler.enable(self.log, all_threads=False)
        main = threading.get_ident()
        threading.Thread(target=self._watch, args=(main,), daemon=True).start()

    def _watch(self, main: int) -> None:
        parent = multiprocessing.parent_process()
        while True:
            time.sleep(TICK_S)
            if parent is not None and not parent.is_alive():
                end_group(os.getpid())
            computed, waited = self.clock() - self.cpu, time.monotonic() - self.wall
            late = computed > self.limit_s or waited > WAIT_S
            if late and (frame := sys._current_frames().get(main)) is not None:
                frames = [frame for frame, _ in traceback.walk_stack(frame)]  # the innermost first
                of_file = {f: f.f_code.co_filename for f in frames}
                mine = [f for f in frames if any(same(of_file[f], file) for file in self.files)]
                at = (mine or frames)[0]
                self.write(
                    event="loop",
                    test=self.name,
                    seconds=computed if computed > self.limit_s else waited,
                    where=f"{of_file[at]}:{at.f_lineno}",
                    line=linecache.getline(of_file[at], at.f_lineno).strip(),
                    inputs=held(at) if mine else "",
                )
                os.kill(os.getpid(), signal.SIGKILL)


def place_of(log: str, files: Iterable[str]) -> str:
    """`FILE:LINE` of the learner's innermost frame in the last of such tracebacks, or nothing."""
    files, last = list(files), re.split(r"^(?=Timeout|Fatal)", log, flags=re.MULTILINE)[-1]
    for path, number in re.findall(r'File "(.+?)", line (\d+)', last):
        if any(same(path, file) for file in files):
            return f"{path}:{number}"
    return ""


def end_group(pid: int) -> None:
    """End the process group that a run has made for itself, with all that it has started."""
    if hasattr(os, "killpg"):
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)


def _clock_of_this_thread() -> Callable[[], float]:
    """Seconds that the calling thread has computed, readable from any other."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    return time.monotonic
