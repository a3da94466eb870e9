"""Why do these tests fail? Tries the known wrong answers and names those that explain it.

In:  a lab, the learner's texts and the `Report` of their failures. Out: for each failing test
the misconceptions that it comes from, if it is a known one.

A failing test alone says little: many mistakes fail it. So each wrong answer that the failing tests
can catch runs through the same tests: first as it is, in the engine's file, then in the place of
the learner's own definitions, for a file with two mistakes. It is named only if

- every failing test fails again, on the same line, with the same values of everything that the
  test holds, and no test that passed for the learner fails;
- and, in the learner's file, the engine's definitions in that place change the outcome: the
  learner's own are at fault.

Where none is, each hole is looked at alone, with the engine's code in all others: of a first check
with three slips each may be a known one. Else one is named for the tests that it fails itself, if
the learner fails all of them on the same line and with the same values: then there is more to mend
than that.

A misspelt name, a wrong type or an exhausted memory is no belief: it is told as what it is.
"""

from __future__ import annotations

import ast
import os
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from multiprocessing.context import BaseContext
from threading import Lock
from typing import Any

from labs.runner.checks.checking import Causes, Outcome, Report, check_texts
from labs.runner.checks.evidence import ANY, PASSED, same_outcome
from labs.runner.checks.warm import forks
from labs.runner.cut.catalogue import Hole, Lab, Misconception
from labs.runner.cut.cutter import CutError, changed, parsed, splice
from labs.runner.cut.holes import holes_of, reached_from
from labs.runner.cut.migrate import migrate

SLIPS = {  # errors that come from a slip of the pen, or say themselves what is wrong
    "TypeError", "NameError", "UnboundLocalError", "AttributeError", "ImportError",
    "ModuleNotFoundError", "SyntaxError", "IndentationError", "MemoryError", "SystemExit",
    "RecursionError", "NoTerminal",
}  # fmt: skip
TIME_S = 3.0  # of CPU time, for all the wrong answers that are tried
LONG_S = 0.9  # what a check took beyond this goes off that time, but for half a second
WALL_S = 15.0  # for all of them; what has not ended by then is left out


def diagnose(
    lab: Lab,
    texts: Mapping[str, str],
    report: Report,
    *,
    context: BaseContext | None = None,
    time_s: float | None = None,
) -> Causes:
    """Look for the misconceptions behind the failures of this report on these texts, for `time_s`
    of CPU time or, if it is None, `TIME_S` less what the check took beyond `LONG_S`; for `WALL_S`
    at most, if that is longer. If that was too short and nothing is named, `report.unsought` is
    set."""
    failing = {o.test: o for o in report.failed if not o.todo and not is_slip(o)}
    named: dict[str, tuple[str, ...]] = dict.fromkeys(failing, ())
    report.unsought = False
    known = [m for m in lab.misconceptions if any(m.id in o.catches for o in failing.values())]
    rivals = sorted(known, key=lambda rival: _passed(report, rival))  # the likeliest first
    if not rivals:
        return named
    spent_s = min(max(report.seconds - LONG_S, 0.0), 2.5)
    cpu_s = time_s or TIME_S - spent_s
    at_once = min(len(rivals), max(2, (os.cpu_count() or 2) // 2))
    until = time.monotonic() + max(cpu_s, WALL_S)
    context = context or forks(lab)
    trial = _Trial(lab, dict(texts), report, failing, context, until, [cpu_s])
    with ThreadPoolExecutor(at_once) as workers:
        for explains in (trial.is_it, trial.is_it_alone, trial.explains):
            for rival, explained in zip(rivals, workers.map(explains, rivals), strict=True):
                for test in explained:
                    named[test] += (rival.id,)
            if any(named.values()):
                return named
        parts = dict(zip(rivals, map(frozenset, workers.map(trial.holds, rivals)), strict=True))
    for rival, its in parts.items():
        for test in its if not any(its < others for others in parts.values()) else ():
            named[test] += (rival.id,)
    report.unsought = trial.left_s <= 0 and not any(named.values())
    return named


def is_slip(outcome: Outcome) -> bool:
    """Does an error say itself what is wrong? Not if the engine or the lab raised it on purpose."""
    return outcome.error in SLIPS and not outcome.refused


# ---------------------------------------------------------------- parts


@dataclass
class _Trial:
    """What the wrong answers are held against."""

    lab: Lab
    texts: dict[str, str]
    report: Report
    failing: dict[str, Outcome]
    context: BaseContext | None
    until: float  # on the monotonic clock
    cpu_s: list[float]  # CPU time that is left; each run takes its own from it
    hole: int = 0  # where the engine's code stands in all the others
    parts: dict[int, _Trial | None] = field(default_factory=dict)  # hole -> `alone`
    lock: Lock = field(default_factory=Lock)  # of `parts`

    def is_it(self, rival: Misconception) -> tuple[str, ...]:
        """All failing tests, if the wrong answer itself comes out of all tests as the learner's
        files do; else none. A private name that differs from the engine's is no hindrance here. Not
        tried is one that a passing test catches, or if a test of one other hole alone fails."""
        if self.left_s <= 0 or self.report.open or _passed(self.report, rival):
            return ()
        its = {hole.number for hole in self._holes_of(rival)}
        reached = [reached_from(self.lab, test) for test in self.failing]
        if its and not self.hole and any(len(one) == 1 and not its & one for one in reached):
            return ()
        return tuple(self.failing) if self._fails_as(self.lab.wrong(rival.id), rival) else ()

    def _holes_of(self, rival: Misconception) -> list[Hole]:
        """Those that a wrong answer fills differently."""
        places = {edit.place for edit in rival.edits}
        return [
            hole for hole in self.lab.holes if places & {*hole.writes, *hole.removes, hole.file}
        ]

    @property
    def used(self) -> set[int]:
        """The holes that failing tests use."""
        return {number for test in self.failing for number in holes_of(self.lab, test)}

    def holds(self, rival: Misconception) -> tuple[str, ...]:
        """The tests that the wrong answer fails, if the learner's files fail each of them in the
        same way, and others as well; else none."""
        if self.left_s <= 0 or self.report.open:
            return ()
        light = "torch" not in self.lab.packages
        tests = [o.test for o in self.report.outcomes if light or rival.id in o.catches]
        run = self._run(self.lab.wrong(rival.id), dict.fromkeys(tests, ANY))
        theirs = {o.test: asdict(o) for o in run.failed}
        same = (
            not run.stopped
            and len(run.outcomes) == len(tests)
            and all(
                test in self.failing and same_outcome(asdict(self.failing[test]), outcome)
                for test, outcome in theirs.items()
            )
        )
        caught = any(rival.id in outcome["catches"] for outcome in theirs.values())
        return tuple(theirs) if same and caught else ()

    def explains(self, rival: Misconception) -> tuple[str, ...]:
        """The failing tests that this misconception explains; none if there is no time to see."""
        if self.left_s <= 0:
            return ()
        try:
            wrong, cured = self._wrong_and_cured(rival)
        except (CutError, KeyError):
            return ()  # the learner's file has no such function: this answer does not fit it
        mine, engine = _parsed(self.texts), _parsed(self.lab.reference())
        same, whole = _parsed(wrong) == mine, _parsed(cured) == engine
        if _parsed(cured) == mine:
            return ()  # the learner has there what the engine has
        if not same and not self._fails_as(wrong, rival):
            return ()
        return tuple(self.failing) if whole else self._mended_by(cured)

    def is_it_alone(self, rival: Misconception) -> tuple[str, ...]:
        """The failing tests that the wrong answer fails as the learner's code of its hole alone
        does, if several holes are in doubt or some are open: then one mistake hides another."""
        used, opened = self.used, self.report.open
        doubted = [hole for hole in self.lab.holes if hole.number in used and hole not in opened]
        named = set[str]()
        for hole in self._holes_of(rival) if len(doubted) > 1 or opened else ():
            if hole in doubted and not hole.broken and (alone := self.alone(hole)):
                named.update(alone.is_it(rival))
        return tuple(test for test in self.failing if test in named)

    def alone(self, hole: Hole) -> _Trial | None:
        """The same of the engine's files with the learner's code in this one hole, and what that
        code uses; None where nothing fails, or there is no time."""
        with self.lock:
            if hole.number not in self.parts:
                self.parts[hole.number] = self._alone(hole) if self.left_s > 0 else None
            return self.parts[hole.number]

    def _alone(self, hole: Hole) -> _Trial | None:
        names = [one for one in self.lab.definitions() if one[0] == hole]
        texts = migrate(self.lab.cut((hole,)), self.texts, names).texts
        report = self._run(texts, dict.fromkeys([o.test for o in self.report.outcomes], ANY))
        failing = {o.test: o for o in report.failed if not o.todo and not is_slip(o)}
        if report.stopped or not failing:
            return None
        return replace(self, texts=texts, report=report, failing=failing, hole=hole.number)

    def _wrong_and_cured(self, rival: Misconception) -> tuple[dict[str, str], dict[str, str]]:
        """The learner's texts with the definitions of a wrong answer, and with the engine's there.

        Raises CutError if the learner has none of these definitions.
        """
        engine, answer = self.lab.reference(), self.lab.wrong(rival.id)
        wrong, cured = dict(self.texts), dict(self.texts)
        for file in (file for file in engine if answer[file] != engine[file]):
            believed = changed(engine[file], answer[file])
            wrong |= {file: splice(wrong[file], believed, known=True)}
            cured |= {file: splice(cured[file], changed(answer[file], engine[file]))}
        return wrong, cured

    def _fails_as(self, wrong: dict[str, str], rival: Misconception) -> bool:
        """Does a wrong answer come out of the tests as the learner's does?"""
        light = "torch" not in self.lab.packages  # then all tests together take a second or two
        expected = {test: asdict(outcome) for test, outcome in self.failing.items()} | {
            o.test: PASSED
            for o in self.report.outcomes
            if o.outcome == "passed" and (light or rival.id in o.catches)
        }
        run = self._run(wrong, expected)
        theirs = {outcome.test: outcome for outcome in run.outcomes}
        return all(
            test in theirs and same_outcome(outcome, asdict(theirs[test]))
            for test, outcome in expected.items()
        )

    def _mended_by(self, cured: dict[str, str]) -> tuple[str, ...]:
        """The failing tests that the engine's definitions in that place pass, or fail otherwise."""
        run = self._run(cured, dict.fromkeys(self.failing, ANY))
        theirs = {outcome.test: outcome for outcome in run.outcomes}
        return tuple(
            test for test, mine in self.failing.items()
            if test in theirs and not same_outcome(asdict(mine), asdict(theirs[test]))
        )  # fmt: skip

    def _run(self, texts: dict[str, str], expected: Mapping[str, Mapping[str, Any]]) -> Report:
        wall_s = max(0.1, self.until - time.monotonic())
        lab = replace(self.lab, limit_s=min(self.lab.limit_s, wall_s))
        run = check_texts(lab, texts, expected=expected, cpu_s=self.left_s, context=self.context)
        self.cpu_s[0] -= run.cpu_s
        return run

    @property
    def left_s(self) -> float:
        """Seconds of CPU time that are left; none if there is no time on the clock."""
        return self.cpu_s[0] if time.monotonic() < self.until else 0.0


def _passed(report: Report, rival: Misconception) -> int:
    """How many tests passed that catch it. A file that holds it fails most of them."""
    return sum(o.outcome == "passed" and rival.id in o.catches for o in report.outcomes)


def _parsed(texts: Mapping[str, str]) -> dict[str, str]:
    """The texts without their comments and line breaks."""
    return {file: ast.dump(parsed(text)) for file, text in texts.items()}
