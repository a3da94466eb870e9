"""What a lab shows on the learner's own code, and what one small mistake does to it."""

from __future__ import annotations

import json
import os
import sys

import pytest

from labs.runner import workspace
from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from labs.runner.programs import completed, merged, run
from tests.labs.conftest import Say, mark_passed
from tests.support.warm_python import warm_python

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
WITH_A_SHOW = [
    lab for lab in all_labs()
    if (lab.folder / "show.py").exists()
    # else it is run, once, with the commands of its page
    and (SLOW or f"\n./lab show {lab.number}\n" not in (lab.folder / "README.md").read_text())
]  # fmt: skip
LAB = lab_number("4")
OF_TEN_SECONDS = ("11", "12b", "13", "15")  # shows that take so long: `make slow` runs them
MODULE = "mini_engine.step.launch_model"


def mine() -> str:
    return workspace.my_files(LAB)["launch_model.py"].read_text()


def write(text: str) -> None:
    workspace.my_files(LAB)["launch_model.py"].write_text(text)


def solve() -> None:
    mark_passed(LAB, {"launch_model.py": "# mine\n" + LAB.reference()["launch_model.py"]})


def printed(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "executable", warm_python())
    done = completed(f"labs.{lab.name}.show", [], {}, lab.environment, capture_output=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize(
    "lab",
    [
        pytest.param(lab, marks=[pytest.mark.slow] if lab.number in OF_TEN_SECONDS else [])
        for lab in WITH_A_SHOW
    ],
    ids=lambda lab: lab.name,
)
def test_a_lab_shows_the_same_lines_at_every_run(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a sabotage changes stands out only if nothing else does. `make slow` compares two."""
    lines = printed(lab, monkeypatch)
    assert len(lines.splitlines()) >= 3
    if SLOW:
        assert printed(lab, monkeypatch) == lines


def test_show_runs_the_learners_own_code_once_it_has_passed(say: Say) -> None:
    say("start", "4")
    assert "the engine's code" in say("show", "4")[1]
    solve()
    write(mine().replace("return math.ceil(capture_us", "return 12345 + 0 * (capture_us"))
    code, said = say("show", "4")
    assert code == 0
    assert "after 12345" in said


def test_a_sabotage_changes_one_place_shows_what_it_does_and_can_be_taken_back(say: Say) -> None:
    say("start", "4")
    assert say("sabotage", "4")[0] == 2, "it is not green"
    solve()
    before = mine()
    symptoms = json.loads(say("sabotage", "4", "--seed", "1", "--json")[1])["symptoms"]
    assert {line[:4] for line in symptoms} == {"was ", "is  "}
    lines, now = before.splitlines(), mine().splitlines()
    assert 1 <= len(set(lines) - set(now)) <= 2
    assert now[0] == "# mine"
    assert say("check", "4")[0] == 1, "the tests notice it"
    shown = say("show", "4")[1]
    assert all(line[5:] in shown for line in symptoms if line.startswith("is")), "and it shows"
    assert say("sabotage", "4")[0] == 2, "one at a time"
    assert say("sabotage", "4", "--undo")[0] == 0
    assert mine() == before
    assert "your own code:" in say("show", "4")[1], "it has passed, as before"


def test_undoing_a_sabotage_takes_nothing_else_back(say: Say) -> None:
    solve()
    before = mine()
    assert say("sabotage", "4", "--seed", "1")[0] == 0
    write(mine() + "# written since\n")
    assert say("sabotage", "4", "--undo")[0] == 0
    assert mine() == before + "# written since\n"
    assert say("check", "4")[0] == 0
    assert say("sabotage", "4", "--seed", "1")[0] == 0
    say("reset", "4")
    fresh = mine()
    assert say("sabotage", "4", "--undo")[0] == 0
    assert mine() == fresh, "what was cut anew stays"


# ---------------------------------------------------------------- the engine on one's own code


def test_the_demo_runs_the_engine_with_the_solved_files_in_its_place(
    say: Say, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["demo", "capacity", "--gpu", "h200"]
    code, said = say(*words)
    assert code == 0
    assert "this is its own code" in said
    solve()
    code, said = say(*words)
    assert code == 0
    assert f"lab 4 runs in the place of the engine's:\n  {MODULE}" in said
    write(mine().replace("return kernels * kernel_us / itl_us", "return 0.5 + 0.25"))
    probe = f"import {MODULE} as m; print('mine:', m.utilisation(1, 1, 9))"
    assert run("timeit", ["-n1", "-r1", probe], merged([LAB])) == 0
    assert "mine: 0.75" in capfd.readouterr().out
    assert say("check")[0] == 1
    said = say(*words)[1]
    assert "Left out: lab 4" in said
    assert MODULE not in said
