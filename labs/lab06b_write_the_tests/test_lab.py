"""Lab 6b: your tests, tested. Right runners must pass them, and every broken one must fail one."""

from __future__ import annotations

import tomllib
import traceback
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from labs.lab06b_write_the_tests import suite
from labs.runner.checks.evidence import held
from labs.runner.cut.cutter import TODO, splice
from labs.runner.cut.edits import edits

HERE = Path(__file__).parent
SIM = HERE.parent.parent / "mini_engine/sim"
# The engine's runners as one module, so that a broken one may replace parts of either file.
ENGINE = (SIM / "graphs.py").read_text(encoding="utf-8") + "".join(
    line
    for line in (SIM / "piecewise.py").read_text(encoding="utf-8").splitlines(keepends=True)
    if not line.startswith(("from __future__", "from mini_engine.sim.graphs"))
)
CLAIMS = [
    "every_batch_is_answered_as_the_host_computes_it",
    "silent_users_are_left_alone",
    "capturing_counts_nobodys_words",
    "a_batch_is_one_replay_at_the_smallest_size",
    "too_large_a_batch_is_refused",
    "memory_of_others_is_not_touched",
    "live_ops_run_live_and_all_of_them",
]
# Each broken runner: its edits, what people saw, and the weaknesses of a suite that miss it.
BROKEN = {
    one["name"]: one
    for one in tomllib.loads((HERE / "mutants.toml").read_text(encoding="utf-8"))["runner"]
}
REFUSES = "turned_away"  # an error of its own: a test that asks for nothing fails on it, too
ERRORS = (Exception, pytest.fail.Exception, pytest.skip.Exception, pytest.xfail.Exception)
each_claim = pytest.mark.parametrize("claim", CLAIMS, ids=lambda name: name.replace("_", " "))


def runner(text: str = ENGINE, name: str = "graphs") -> ModuleType:
    """A module of runners with this text."""
    module = ModuleType(f"runner_{name}")
    exec(compile(text, f"{name}.py", "exec"), vars(module))
    return module


@cache
def right(name: str) -> ModuleType:
    """The engine's runners with the definitions of another right one in the place of their own."""
    return runner(splice(ENGINE, (HERE / "right" / f"{name}.py").read_text(encoding="utf-8")), name)


@cache
def broken(name: str) -> ModuleType:
    texts = {"graphs.py": ENGINE}
    for edit in edits(BROKEN[name]["edit"]):
        texts = edit.applied(texts)
    return runner(texts["graphs.py"], name)


def function(claim: str) -> Callable[[ModuleType], object]:
    found = getattr(suite, claim, None)
    assert callable(found), f"your suite has no test {claim} any more: every claim needs its own"
    return found


@cache
def verdict(claim: str, name: str) -> BaseException | None:
    """What a test says of a broken runner: its error, None if it passes or does not want to say."""
    try:
        function(claim)(broken(name))
    except (pytest.skip.Exception, pytest.xfail.Exception):
        return None
    except ERRORS as error:
        return error
    return None


def open_todo(error: BaseException | None) -> bool:
    return isinstance(error, NotImplementedError) and bool(TODO.search(str(error)))


def where(error: BaseException) -> str:
    """The line of the suite at which an error came up."""
    frames = traceback.extract_tb(error.__traceback__)
    mine = [frame for frame in frames if frame.filename == suite.__file__]
    return f"line {mine[-1].lineno}: {mine[-1].line}" if mine else "outside of the suite"


def holding(error: BaseException) -> str:
    """What the test held at that line, one line; nothing if it held nothing that can be shown."""
    steps = list(traceback.walk_tb(error.__traceback__))
    mine = [frame for frame, _ in steps if frame.f_code.co_filename == suite.__file__]
    shown = held(mine[-1], without=("graphs", "service")) if mine else ""
    return f"\nwith {shown}" if shown else ""


def must_pass(claim: str, right: ModuleType, why: str) -> None:
    try:
        function(claim)(right)
    except ERRORS as error:
        if open_todo(error):
            raise
        said = f"{type(error).__name__}: {error}".rstrip(": ")
        pytest.fail(f"{why}\nYet your test fails on it at {where(error)}\n{said}{holding(error)}")


# ---------------------------------------------------------------- a right runner passes


@each_claim
@pytest.mark.catches("reads-too-late")
def test_the_engines_runner_passes(claim: str) -> None:
    must_pass(claim, runner(), "The engine's runner is right.")


@each_claim
@pytest.mark.catches("pins-the-way")
def test_a_right_runner_of_another_make_passes(claim: str) -> None:
    other = right("another_make")
    must_pass(claim, other, "This runner is right too: it keeps every claim, in another way.")


@each_claim
@pytest.mark.catches("slot-zero-is-sacred", "tidy-after-capture")
def test_a_right_runner_that_leaves_open_what_the_claims_leave_open_passes(claim: str) -> None:
    other = right("leaves_it_open")
    must_pass(
        claim, other, "This runner is right too: where nothing is claimed it does as it likes."
    )


@each_claim
@pytest.mark.catches("pins-the-way")
def test_a_right_runner_that_breaks_its_capture_off_passes(claim: str) -> None:
    other = right("breaks_off")
    must_pass(claim, other, "This runner is right too: its pieces come from one capture.")


# ---------------------------------------------------------------- it looks at the runner at all


@each_claim
@pytest.mark.catches("passes-without-running")
def test_each_test_runs_what_it_tests(claim: str) -> None:
    watched, calls = runner(), []
    run = watched.GraphRunner.run

    def counted(self: object, *args: object, **named: object) -> object:
        calls.append(args)
        return run(self, *args, **named)

    watched.GraphRunner.run = counted
    try:
        function(claim)(watched)
    except ERRORS as error:
        if open_todo(error):
            raise
        return  # the test above says what is wrong with it
    assert calls, "your test never runs a batch: it passes whatever the runner does"


# ---------------------------------------------------------------- a broken one fails


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name, id=name.replace("_", " "), marks=pytest.mark.catches(*one["slips_through"])
        )
        for name, one in BROKEN.items()
    ],
)
def test_somebody_notices(name: str) -> None:
    verdicts = [verdict(claim, name) for claim in CLAIMS]
    if any(error and not open_todo(error) for error in verdicts):
        return
    for error in verdicts:
        if error:
            raise error  # a test that is still to be written: this incident waits for it
    pytest.fail(f"All your tests pass on a broken runner. The incident: {BROKEN[name]['incident']}")


@each_claim
@pytest.mark.catches("passes-without-running")
def test_each_test_fails_on_some_broken_runner(claim: str) -> None:
    names = [name for name in BROKEN if name != REFUSES]
    verdicts = [verdict(claim, name) for name in names]
    for error in verdicts:
        if error and open_todo(error):
            raise error
    asked, noticed = len(verdicts), len([error for error in verdicts if error])
    assert noticed, f"{asked} broken runners that answer batches: your test passes on all of them"
