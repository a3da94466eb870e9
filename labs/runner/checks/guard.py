"""Watches over the process that runs a learner's code, and says where it went wrong.

In:  the learner's files and a function that writes an event. Out: events, each with the learner's
file and line:

    {"event": "loop", …}     one test has used more than its time: the process ends
    {"event": "exit", …}     os._exit was called
    {"event": "wrote", …}    a file of the repository was opened for writing, or removed

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
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

from labs.runner.checks.evidence import held, same

IMPORT_CPU_S = 25.0  # of all imports, PyTorch's among them
WAIT_S = 45.0  # of waiting, for a lock that nobody gives back
TRACE_S = 4.0  # after a test's time is over
TICK_S = 0.25
STACK = 12  # frames that are told

Write = Callable[..., None]


class Guard:
    """One for a process. `test` is told of each test that begins; it may compute for `test_s`."""

    def __init__(self, files: list[str], write: Write, test_s: float) -> None:
        self.files, self.write, self.test_s = files, write, test_s
        self.name = ""
        self.limit_s = IMPORT_CPU_S
        self.clock = _clock_of_this_thread()
        self.cpu, self.wall = self.clock(), time.monotonic()
        self.told: set[str] = set()
        self.log: IO[str] | None = None

    def test(self, name: str) -> None:
        """A test begins: its time counts from here."""
        self.name, self.limit_s = name, self.test_s
        self.cpu, self.wall = self.clock(), time.monotonic()
        if self.log is not None:  # a loop in compiled code lets no other thread in: leave a trace
            faulthandler.dump_traceback_later(self.test_s + TRACE_S, file=self.log)

    def watch(self, *, limits: bool) -> None:
        """Begin: end the process with its parent and, with `limits`, when a test takes too long."""
        main = threading.get_ident()
        threading.Thread(target=self._watch, args=(main, limits), daemon=True).start()

    def log_crashes(self, path: str) -> None:
        """Write tracebacks of crashes (a segmentation fault, an abort) to this file."""
        self.log = open(path, "w")  # noqa: SIM115  open until the end
        faulthandler.enable(self.log, all_threads=False)

    def tell_exits(self) -> None:
        """From now on `os._exit` of this process says who called it."""
        really, pid = os._exit, os.getpid()

        def told(status: int) -> None:
            if os.getpid() == pid:
                frame, number = self._mine(sys._getframe(1))
                self._tell("exit", frame, number, code=status)
            really(status)

        os._exit = told  # type: ignore[assignment]

    def tell_writes(self, root: Path, *, except_in: Iterable[Path]) -> None:
        """From now on writing below `root` by the learner's code is told, not refused."""
        inside, outside = f"{root}{os.sep}", tuple(f"{path}{os.sep}" for path in except_in)
        pid = os.getpid()

        def hook(event: str, args: tuple[Any, ...]) -> None:
            if event not in ("open", "os.remove", "os.rename", "os.mkdir") or os.getpid() != pid:
                return
            if event == "open" and not _writes(args[1], args[2]):
                return
            target = args[1] if event == "os.rename" else args[0]
            if not isinstance(target, str | bytes | os.PathLike):
                return  # a file that is open already
            path = os.path.realpath(os.fsdecode(target))
            if not path.startswith(inside) or path.startswith(outside) or path in self.told:
                return
            with contextlib.suppress(LookupError):
                frame, number = self._mine(sys._getframe(1), must=True)
                self.told.add(path)
                self._tell("wrote", frame, number, path=path)

        sys.addaudithook(hook)

    # -- parts ---------------------------------------------------------------------------------

    def _watch(self, main: int, limits: bool) -> None:
        parent = multiprocessing.parent_process()
        while True:
            time.sleep(TICK_S)
            if parent is not None and not parent.is_alive():
                end_group(os.getpid())
            late = self.clock() - self.cpu > self.limit_s or time.monotonic() - self.wall > WAIT_S
            if limits and late and (frame := sys._current_frames().get(main)) is not None:
                mine, number = self._mine(frame)
                is_mine = self._is_mine(mine)
                names = list(mine.f_locals) if is_mine else []
                stack = [] if is_mine else _stack(frame)
                used = self.clock() - self.cpu
                self._tell("loop", mine, number, test=self.name, seconds=used,
                           inputs=held(mine, names), stack=stack)  # fmt: skip
                os.kill(os.getpid(), signal.SIGKILL)

    def _tell(self, event: str, frame: types.FrameType, number: int, **more: Any) -> None:
        path = frame.f_code.co_filename
        line = linecache.getline(path, number).strip()
        self.write(event=event, where=f"{path}:{number}", line=line, **more)

    def _is_mine(self, frame: types.FrameType) -> bool:
        return any(same(frame.f_code.co_filename, file) for file in self.files)

    def _mine(self, frame: types.FrameType, must: bool = False) -> tuple[types.FrameType, int]:
        """The learner's innermost frame at or above this one; this one if there is none."""
        link: types.FrameType | None = frame
        while link is not None:
            if self._is_mine(link):
                return link, link.f_lineno
            link = link.f_back
        if must:
            raise LookupError("not the learner's code")
        return frame, frame.f_lineno


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


def own_group() -> None:
    """Make this process the head of a group of its own."""
    if hasattr(os, "setpgid"):
        os.setpgid(0, 0)


def _stack(frame: types.FrameType) -> list[str]:
    """The innermost frames, for whoever must find out why none of them is the learner's."""
    found = traceback.extract_stack(frame)[-STACK:]
    return [f"{at.filename}:{at.lineno} in {at.name}" for at in reversed(found)]


def _clock_of_this_thread() -> Callable[[], float]:
    """Seconds that the calling thread has computed, readable from any other."""
    if hasattr(time, "pthread_getcpuclockid"):
        clock = time.pthread_getcpuclockid(threading.get_ident())
        return lambda: time.clock_gettime(clock)
    return time.monotonic


def _writes(mode: object, flags: object) -> bool:
    if isinstance(mode, str):
        return any(letter in mode for letter in "wax+")
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT))
