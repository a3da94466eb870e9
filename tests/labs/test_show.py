"""What only one's own code could show, and what one small mistake does to it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from labs.runner import own, workspace
from labs.runner.cli import main
from labs.runner.cut.catalogue import ROOT, Lab, all_labs, lab_number
from labs.runner.own import LIMIT_S
from labs.runner.play import output
from tests.support.warm_python import warm_python

WITH_A_SHOW = [lab for lab in all_labs() if (lab.folder / "show.py").exists()]
LAB = lab_number(1)
OF_TEN_SECONDS = (11, 12, 15)  # shows that take so long: `make slow` runs them


@pytest.fixture(autouse=True)
def _a_learner_of_our_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "300")


def mine() -> Path:
    return workspace.my_files(LAB)["launch_model.py"]


def solve() -> None:
    main(["start", "1"])
    mine().write_text("# mine\n" + LAB.reference()["launch_model.py"])
    assert main(["check", "1"]) == 0


@pytest.fixture
def told(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "executable", warm_python())
    return output(f"labs.{lab.name}.show", {}, lab.environment, LIMIT_S)


@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, marks=[pytest.mark.slow] if lab.number in OF_TEN_SECONDS else [])
        for lab in WITH_A_SHOW
    ],
    ids=lambda lab: lab.name,
)
def test_a_lab_shows_something_on_the_engines_code(lab: Lab, told: str) -> None:
    assert len(told.splitlines()) >= 3, f"{lab.name} shows {told!r}"
    assert "Traceback" not in told
    assert "Error" not in told.splitlines()[-1], told


@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, marks=[pytest.mark.slow] if "torch" in lab.packages else [])
        for lab in WITH_A_SHOW
    ],
    ids=lambda lab: lab.name,
)
def test_a_lab_shows_the_same_lines_at_every_run(lab: Lab, told: str) -> None:
    """What a sabotage changes stands out only if nothing else does."""
    assert output(f"labs.{lab.name}.show", {}, lab.environment, LIMIT_S) == told


def test_show_runs_the_learners_own_code_once_it_has_passed(
    capfd: pytest.CaptureFixture[str],
) -> None:
    main(["start", "1"])
    assert main(["show", "1"]) == 0
    assert "the engine's code" in capfd.readouterr().out
    solve()
    mine().write_text(
        mine().read_text().replace("return math.ceil(capture_us", "return 12345 + 0 * (capture_us")
    )
    assert main(["show", "1"]) == 0
    told = capfd.readouterr().out
    assert "your own code" in told
    assert "after 12345" in told


def test_a_sabotage_changes_one_place_shows_what_it_does_and_can_be_taken_back(
    capfd: pytest.CaptureFixture[str],
) -> None:
    main(["start", "1"])
    assert main(["sabotage", "1"]) == 2
    assert "is not green" in capfd.readouterr().err
    solve()
    before = mine().read_text()
    capfd.readouterr()
    assert main(["sabotage", "1", "--seed", "1"]) == 0
    told = capfd.readouterr().out
    assert "was  " in told
    assert "is   " in told
    lines, now = before.splitlines(), mine().read_text().splitlines()
    assert 1 <= len(set(lines) - set(now)) <= 2
    assert now[0] == "# mine"
    assert main(["check", "1"]) == 1, "the tests notice it"
    assert main(["show", "1"]) == 0, "and it goes on to show what the mistake does"
    shown = capfd.readouterr().out
    assert "with a mistake in it" in shown
    symptoms = [line.strip()[5:] for line in told.splitlines() if line.strip().startswith("is ")]
    assert symptoms
    assert all(line in shown for line in symptoms)
    assert main(["sabotage", "1"]) == 2
    assert "is sabotaged" in capfd.readouterr().err
    assert main(["sabotage", "1", "--undo"]) == 0
    assert mine().read_text() == before
    assert "as you wrote it" in capfd.readouterr().out
    assert main(["show", "1"]) == 0
    assert "your own code:" in capfd.readouterr().out, "it has passed, as before"


def test_a_sabotage_that_was_found_is_over() -> None:
    main(["start", "1"])
    solve()
    before = mine().read_text()
    assert main(["sabotage", "1", "--seed", "1"]) == 0
    mine().write_text(before + "# mended by hand\n")
    assert main(["check", "1"]) == 0
    assert main(["sabotage", "1", "--undo"]) == 0
    assert mine().read_text().endswith("# mended by hand\n"), "what came later stays"
    assert main(["sabotage", "1", "--seed", "2"]) == 0, "and there is another one"


def test_a_show_that_is_cut_short_by_head_ends_quietly() -> None:
    words = [sys.executable, "-m", "labs.runner.play", "labs.lab17_vllm.show", ""]
    shown = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert shown.stdout
    shown.stdout.close()
    _, told = shown.communicate()
    assert told == b""


def test_a_show_that_dies_of_a_signal_says_which_and_is_the_last_choice_of_a_sabotage() -> None:
    """A kernel in the interpreter that writes beside its tensor breaks the C library's heap."""
    module = "mini_engine.step.launch_model"
    dying = "import os\nprint('so far', flush=True)\nos.abort()\n"
    told = output(f"labs.{LAB.name}.show", {module: dying}, {}, LIMIT_S)
    assert own._crashed(told), told
    assert told.splitlines()[-1] == "the process died of SIGABRT"
    assert own._crashed("a line\ntriton.runtime.errors.InterpreterError: TypeError('operands')")
    assert not own._crashed("a line\n3 of 4 tokens differ")


def test_a_warning_of_a_show_that_ends_well_is_no_symptom() -> None:
    module = "mini_engine.step.launch_model"
    warning = (
        LAB.reference()["launch_model.py"] + "\nimport warnings\nwarnings.warn('an overflow')\n"
    )
    told = [
        output(f"labs.{LAB.name}.show", texts, {}, LIMIT_S) for texts in ({}, {module: warning})
    ]
    assert told[0] == told[1]


def test_a_lab_whose_tests_are_all_it_has_says_so(capfd: pytest.CaptureFixture[str]) -> None:
    silent = next(lab for lab in all_labs() if lab not in WITH_A_SHOW)
    assert main(["show", str(silent.number)]) == 2
    assert "nothing to show" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("line", "hidden"),
    [
        ("    if rows <= 1e3:", True),
        ("    if rows < 1e4:", True),
        ("    if rows > 1e3 + 1:", False),  # two places
        ("    if True:", False),
        ("    pass", False),
    ],
)
def test_a_sabotage_is_no_line_that_is_seen_at_a_glance(line: str, hidden: bool) -> None:
    before = "def f(rows):\n    if rows < 1e3:\n        return 1\n    return 2\n"
    assert own._in_one_place(before, before.replace("    if rows < 1e3:", line)) is hidden
