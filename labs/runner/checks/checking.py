"""Run the tests of a lab and report the outcome.

In:  a `Lab` and an implementation: the learner's files, or texts made from the engine's.
Out: a `Report`: what passed, which TODOs are open, what failed, or why nothing ran (a syntax error,
time, memory). diagnosis.py then looks for the misconceptions that the failures come from.

The tests run in a process of their own, under the lab's limits of time and memory, and with it ends
all that it has started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from labs.runner.checks.guard import end_group, place_of
from labs.runner.checks.job import Job, run_job, sentence
from labs.runner.checks.warm import fresh
from labs.runner.cut.catalogue import Hole, Lab
from labs.runner.cut.cutter import CutError, open_holes
from labs.runner.cut.source import source, syntax_error

ROOM = 100_000  # bytes that the events of a run may take
ENDLESS = "does a loop never end? The engine's own takes far less, unless the machine is busy"
STRAY = "a kernel read or wrote beyond its tensors: is a mask missing, or an offset wrong?"


@dataclass(frozen=True)
class Outcome:
    """One test. `todo` is the open hole that made it fail; evidence.py explains the rest."""

    test: str
    outcome: str  # passed | failed | skipped
    catches: tuple[str, ...] = ()
    todo: str = ""
    error: str = ""
    message: str = ""
    asserted: str = ""
    at: int = 0
    where: str = ""
    line: str = ""
    mine: bool = False  # was it raised in the learner's file?
    within: str = ""  # in which function of it?
    refused: bool = False  # did the engine or the lab raise it on purpose?
    inputs: str = ""
    printed: str = ""
    state: dict[str, str] = field(default_factory=dict)
    reason: str = ""

    @property
    def sentence(self) -> str:
        return sentence(self.test)


# Failing test -> ids of the misconceptions that explain it, none if no known one does. A test that
# is no key was not looked into: its error says itself what is wrong.
Causes = dict[str, tuple[str, ...]]


@dataclass
class Report:
    """The outcome of a run. `stopped` says why it did not finish, or did not begin; `where` and
    `line` then are the place in the learner's file, if it is known."""

    lab: Lab
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: str = ""
    where: str = ""
    line: str = ""
    inputs: str = ""  # what the learner's function held there
    seconds: float = 0.0
    cpu_s: float = 0.0  # what the tests computed; of a run that was ended, its `seconds`
    causes: Causes = field(default_factory=dict)
    unsought: bool = False  # did the time run out before all known mistakes had been tried?
    open: list[Hole] = field(default_factory=list)  # holes that are not filled yet
    hole: int = 0  # the one whose tests alone were run

    @property
    def passed(self) -> bool:
        ran = [o for o in self.outcomes if o.outcome == "passed"]
        return bool(ran) and not self.failed and not self.stopped

    @property
    def failed(self) -> list[Outcome]:
        return [o for o in self.outcomes if o.outcome == "failed"]

    @property
    def todos(self) -> dict[int, int]:
        """Number of each open hole -> how many tests fail because of it, 0 if others fail first."""
        fallen = Counter(number_of(outcome.todo) for outcome in self.failed if outcome.todo)
        return {n: fallen[n] for n in sorted({*fallen, *(hole.number for hole in self.open)})}


def check_files(
    lab: Lab, files: Mapping[str, Path], *, context: BaseContext | None = None, hole: int = 0
) -> Report:
    """Run the lab's tests on these files (learner's file name -> path): all, or those of a hole.
    Those of a lab with PyTorch take seconds: two processes share them where there are two cores."""
    for path in files.values():
        if stopped := syntax_error(path):
            return Report(lab, stopped=stopped)
    parts = 2 if lab.packages and (os.cpu_count() or 1) > 1 else 1
    with contextlib.ExitStack() as running:
        runs = [
            running.enter_context(_started(lab, files, context, hole=hole, part=(part, parts)))
            for part in range(parts)
        ]
        report = _joined([ended() for ended in runs])
    report.hole = hole
    report.open = [one for one in still_open(lab, files) if hole in (0, one.number)]
    return report


def check_texts(
    lab: Lab, texts: Mapping[str, str], *, context: BaseContext | None = None, **which: Any
) -> Report:
    """Run the lab's tests on these texts, file name -> text; `context` starts the process. `which`
    tests, and how far: `only`, `first`, `expected` and `cpu_s` of a `Job`."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        files = {}
        for file, text in texts.items():
            files[file] = Path(folder) / file
            files[file].write_text(text, encoding="utf-8")
        with _started(lab, files, context, **which) as ended:
            return ended()


def still_open(lab: Lab, files: Mapping[str, Path]) -> list[Hole]:
    """The holes that are not filled yet; a function that is missing from its file is not one."""
    found, to_mend = [], lab.to_mend()
    for hole in lab.holes:
        text = source(files[hole.file])
        with contextlib.suppress(CutError):
            if text == to_mend[hole.file] if hole.broken else open_holes(text, [hole.name]):
                found.append(hole)
    return found


# ---------------------------------------------------------------- parts


def _joined(runs: list[Report]) -> Report:
    """One report of runs that took the tests in turn, in the order of the tests."""
    whole = next((run for run in runs if run.stopped), runs[0])
    turns = zip_longest(*(run.outcomes for run in runs))
    whole.outcomes = [outcome for turn in turns for outcome in turn if outcome]
    whole.seconds = max(run.seconds for run in runs)
    whole.cpu_s = sum(run.cpu_s for run in runs)
    return whole


@contextlib.contextmanager
def _started(
    lab: Lab, files: Mapping[str, Path], context: BaseContext | None, **which: Any
) -> Iterator[Callable[[], Report]]:
    """A process that runs the tests. What is yielded waits for it and reports; afterwards, or at
    Ctrl-C, the process is ended with all that it has started."""
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        events = Path(folder) / "events.jsonl"
        events.touch()
        modules = {lab.module(file): str(path) for file, path in files.items()}
        limits = lab.memory_gb, lab.test_s, lab.environment
        job = Job(str(lab.test_file), modules, str(events), *limits, **which)
        process = (context or fresh()).Process(target=run_job, args=(job,))  # type: ignore[attr-defined]

        def end() -> None:
            if process.pid is not None:
                end_group(process.pid)
            process.kill()
            process.join()

        def ended() -> Report:
            process.join(max(0.0, begun + lab.limit_s - time.monotonic()))
            late = process.is_alive()
            end()
            return _read(lab, files, events, begun, late, process.exitcode)

        process.start()
        try:
            yield ended
        finally:
            end()


def _read(
    lab: Lab, files: Mapping[str, Path], events: Path, begun: float, late: bool, code: int | None
) -> Report:
    written = []
    for line in events.read_text(encoding="utf-8").splitlines():
        with contextlib.suppress(ValueError):  # the process was ended in the middle of a line
            written.append(json.loads(line))
    crash = Path(f"{events}.crash")
    log = crash.read_text(encoding="utf-8") if crash.exists() else ""
    report = _report(lab, written, late, code)
    if report.stopped and not report.where and shutil.disk_usage(events.parent).free < ROOM:
        report.stopped = f"no room for the tests in {tempfile.gettempdir()}: TMPDIR names another"
    if report.stopped and not report.where:
        report.where = place_of(log, [str(path) for path in files.values()])
    report.seconds = time.monotonic() - begun
    over: dict[str, Any] = next((e for e in written if e["event"] == "over"), {})
    report.cpu_s = over.get("cpu_s", report.seconds)
    return report


def _report(lab: Lab, events: list[dict[str, Any]], late: bool, code: int | None) -> Report:
    report, last = Report(lab), {event["event"]: event for event in events}
    for event in events:
        if event["event"] == "end":
            fields = {k: v for k, v in event.items() if k not in ("event", "catches")}
            if not 1 <= number_of(fields.get("todo", "")) <= len(lab.holes):
                fields["todo"] = ""  # cut from an older engine, whose lab had more holes
            report.outcomes.append(Outcome(catches=tuple(event["catches"]), **fields))
    if "over" in last and "broken" not in last:
        return report
    test = last.get("start", {"test": ""})["test"]
    ended = test in [outcome.test for outcome in report.outcomes]
    running = f" in “{sentence(test)}”" if test and not ended else ""
    place = last.get("broken") or last.get("loop") or {}
    if "broken" in last:
        report.stopped = place["message"]
    elif late or "loop" in last:
        report.stopped = (
            f"stopped after {place.get('seconds', lab.limit_s):.0f} s{running}: {ENDLESS}"
        )
    else:
        died = STRAY if "triton" in lab.packages else "crashed in compiled code"
        report.stopped = (
            f"the process ended{running} with {_ending(code)}: it ran out of memory "
            f"({lab.memory_gb:g} GB is this lab's limit) or {died}"
        )
    report.where, report.line = place.get("where", ""), place.get("line", "")
    report.inputs = place.get("inputs", "")
    return report


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"code {code}"


def number_of(todo: str) -> int:
    return int(todo.partition("(")[2].partition(")")[0] or 0)
