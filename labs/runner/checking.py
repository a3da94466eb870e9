"""Run the tests of a lab and report the outcome.

In:  a `Lab` and an implementation: the learner's files, or texts made from the engine's.
Out: a `Report`: what passed, which TODOs are open, what failed and which misconception that points
to, or why nothing ran (a syntax error, time, memory).

The tests run in a process of their own, under the lab's limits of time and memory.
"""

from __future__ import annotations

import ast
import contextlib
import json
import multiprocessing
import tempfile
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from multiprocessing.context import BaseContext
from pathlib import Path
from typing import Any

from labs.runner.catalogue import ROOT, Hole, Lab
from labs.runner.cutter import CutError, open_holes
from labs.runner.session import Job, run_job, sentence


@dataclass(frozen=True)
class Outcome:
    """One test. `todo` is the open hole that made it fail."""

    test: str
    outcome: str  # passed | failed | skipped
    catches: tuple[str, ...] = ()
    todo: str = ""
    message: str = ""
    asserted: str = ""
    where: str = ""
    reason: str = ""

    @property
    def sentence(self) -> str:
        return sentence(self.test)


@dataclass
class Report:
    """The outcome of a run. `stopped` says why it did not finish, or did not begin."""

    lab: Lab
    outcomes: list[Outcome] = field(default_factory=list)
    stopped: str = ""
    open: list[Hole] = field(default_factory=list)  # holes that are not filled yet

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
        fallen = Counter(_number(outcome.todo) for outcome in self.failed if outcome.todo)
        return {n: fallen[n] for n in sorted({*fallen, *(hole.number for hole in self.open)})}


def check_files(lab: Lab, files: Mapping[str, Path]) -> Report:
    """Run the lab's tests on these files (learner's file name -> path)."""
    for path in files.values():
        if stopped := syntax_error(path):
            return Report(lab, stopped=stopped)
    report = _run(lab, files)
    report.open = still_open(lab, files)
    return report


def check_implementation(
    lab: Lab, implementation: str, *, only: str = "", context: BaseContext | None = None
) -> Report:
    """Run the lab's tests on the reference, a wrong answer or another made from the engine.

    `only` keeps the tests that catch this misconception; `context` starts the process.
    """
    return check_texts(lab, lab.texts(implementation), only=only, context=context)


def check_texts(
    lab: Lab,
    texts: Mapping[str, str],
    *,
    only: str = "",
    first: bool = False,
    context: BaseContext | None = None,
) -> Report:
    """Run the lab's tests on these texts, file name -> text; with `first` until one fails."""
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        files = {}
        for file, text in texts.items():
            files[file] = Path(folder) / file
            files[file].write_text(text)
        return _run(lab, files, only=only, first=first, context=context)


def still_open(lab: Lab, files: Mapping[str, Path]) -> list[Hole]:
    """The holes that are not filled yet; a function that is missing from its file is not one."""
    found, to_mend = [], lab.to_mend()
    for hole in lab.holes:
        text = files[hole.file].read_text()
        with contextlib.suppress(CutError):
            if text == to_mend[hole.file] if hole.broken else open_holes(text, [hole.name]):
                found.append(hole)
    return found


def syntax_error(path: Path) -> str:
    """One line with the place, or nothing."""
    try:
        ast.parse(path.read_text(), filename=str(path))
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"{shown(path)}:{error.lineno}: {type(error).__name__}: {error.msg}: {line}"
    except (OSError, UnicodeDecodeError) as error:
        return f"{shown(path)}: {error}"
    return ""


def shown(path: Path | str) -> str:
    """A path as one would type it: relative to the project if it is inside."""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)


# ---------------------------------------------------------------- parts


def _run(
    lab: Lab,
    files: Mapping[str, Path],
    *,
    only: str = "",
    first: bool = False,
    context: BaseContext | None = None,
) -> Report:
    context = context or multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory(prefix="lab-") as folder:
        events = Path(folder) / "events.jsonl"
        events.touch()
        job = Job(
            str(lab.test_file),
            {lab.module(file): str(path) for file, path in files.items()},
            str(events),
            lab.memory_gb,
            lab.environment,
            only,
            first,
        )
        process = context.Process(target=run_job, args=(job,))  # type: ignore[attr-defined]
        process.start()
        try:
            process.join(lab.limit_s)
            late = process.is_alive()
        finally:
            process.kill()
            process.join()
        told = [json.loads(line) for line in events.read_text().splitlines()]
    return _report(lab, told, late, process.exitcode)


def _report(lab: Lab, events: list[dict[str, Any]], late: bool, code: int | None) -> Report:
    report = Report(lab)
    for event in events:
        if event["event"] == "end":
            fields = {k: v for k, v in event.items() if k not in ("event", "catches")}
            if not 1 <= _number(fields.get("todo", "")) <= len(lab.holes):
                fields["todo"] = ""  # cut from an older engine, whose lab had more holes
            report.outcomes.append(Outcome(catches=tuple(event["catches"]), **fields))
        elif event["event"] == "broken":
            report.stopped = event["message"]
    if report.stopped or (events and events[-1]["event"] == "over"):
        return report
    started = [event["test"] for event in events if event["event"] == "start"]
    ended = [outcome.test for outcome in report.outcomes]
    running = f" in “{sentence(started[-1])}”" if started and started[-1] not in ended else ""
    if late:
        report.stopped = (
            f"stopped after {lab.limit_s:g} s{running}: does a loop never end? "
            f"The engine's own solution takes a few seconds for the whole lab"
        )
    else:
        report.stopped = (
            f"the process ended{running} with code {code}: it ran out of memory "
            f"({lab.memory_gb:g} GB is this lab's limit) or crashed in compiled code"
        )
    return report


def _number(todo: str) -> int:
    return int(todo.partition("(")[2].partition(")")[0] or 0)
