"""The labs from both sides: the reference passes, every hole alone fails with its TODO, a test that
names the misconception fails for each wrong answer, and another right answer passes too.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from pathlib import Path

import pytest

from labs.runner.checks.checking import Report, check_texts
from labs.runner.checks.warm import context
from labs.runner.cut.catalogue import PATH, Hole, Lab, all_labs
from labs.runner.cut.cutter import definition_of, open_holes
from labs.runner.mistakes.diagnosis import diagnose
from tests.labs.conftest import Say
from tests.support.documents import LINK, ROOT, fences, prose, run_command
from tests.support.warm_python import warm_python

LABS = all_labs()
README_PARTS = [
    "Why",
    "Background",
    "What to build",
    "Run",
    "What the tests prove",
    "Notes",
    "Going further",
]

NAMED = 1  # wrong answers of a lab whose diagnosis `make test` looks at; `make slow` does at all
SOME = 2  # wrong answers of a lab that `make test` tries; `make slow` tries all
SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)


def heavy(lab: Lab) -> bool:
    """Labs with PyTorch take seconds a run. Only `make slow` tries their other right answers and
    each of their holes, and asks what a wrong answer is called."""
    return "torch" in lab.packages


def in_short(lab: Lab) -> bool:
    return heavy(lab) and not SLOW


def slow_if(slow: bool) -> list[pytest.MarkDecorator]:
    return [pytest.mark.slow] if slow else []


def beliefs(lab: Lab) -> list[str]:
    return sorted(belief.id for belief in lab.misconceptions)


WRONG = [
    pytest.param(lab, id, id=f"{lab.name}-{id}", marks=slow_if(place >= SOME))
    for lab in LABS
    for place, id in enumerate(beliefs(lab))
]
HOLES = [
    pytest.param(
        lab, hole, id=f"{lab.name}-{hole.number}-{hole.name}",
        marks=slow_if(heavy(lab) and hole.number != 1),
    )
    for lab in LABS
    for hole in lab.holes
]  # fmt: skip
each_lab_twice = pytest.mark.parametrize(
    "lab", [pytest.param(lab, id=lab.name, marks=slow_if(heavy(lab))) for lab in LABS]
)


# ---------------------------------------------------------------- the tests of a lab


@each_lab
def test_the_reference_passes(lab: Lab) -> None:
    report = check_texts(lab, lab.texts("reference"), context=context())
    assert report.passed, report.stopped or report.failed


@pytest.mark.parametrize(("lab", "hole"), HOLES)
def test_a_hole_alone_fails_and_says_what_is_to_do(lab: Lab, hole: Hole) -> None:
    texts = lab.texts(f"hole/{hole.number}")
    which = {} if SLOW else {"first": True, "hole": hole.number}  # its own tests are enough
    report = check_texts(lab, texts, context=context(), **which)
    assert not report.stopped
    assert report.failed, "no test notices that it is open"
    if hole.broken:  # nothing to write, something to mend: the failing test says what to look for
        assert all(outcome.catches for outcome in report.failed)
    else:
        wanted = f"TODO({hole.number}): {hole.task}".replace('"', "'")
        assert {outcome.todo for outcome in report.failed} == {wanted}


@pytest.mark.parametrize(("lab", "id"), WRONG)
def test_a_wrong_answer_is_killed_by_a_test_that_names_its_misconception_and_no_other(
    lab: Lab, id: str
) -> None:
    texts = lab.wrong(id)
    named_too = not in_short(lab) and (SLOW or id in beliefs(lab)[:NAMED])
    report = check_texts(lab, texts, only=id, first=not named_too, context=context())
    killed = [test for test in report.failed if id in test.catches and not test.todo]
    assert killed, report.stopped or f"no test that catches {id} fails"
    if not named_too:
        return
    named = told(lab, texts, report)
    if named != {id}:  # the tests that catch it do not suffice to tell it from another
        report = check_texts(lab, texts, context=context())
        named = told(lab, texts, report)
    assert named == {id}


def told(lab: Lab, texts: dict[str, str], report: Report) -> set[str]:
    """The misconceptions that a diagnosis names."""
    causes = diagnose(lab, texts, report, context=context(), time_s=60)
    return {id for ids in causes.values() for id in ids}


@each_lab_twice
def test_another_right_answer_passes_too(lab: Lab) -> None:
    report = check_texts(lab, lab.texts("second"), context=context())
    assert report.passed, report.stopped or report.failed
    other = lab.texts("second")
    for hole, names in lab.definitions():
        for name in names:
            written = definition_of(other[hole.file], name)
            assert written != definition_of(lab.reference()[hole.file], name), f"{name} is the same"


# ---------------------------------------------------------------- what a lab is made of


@each_lab
def test_every_misconception_has_a_wrong_answer_of_its_own(lab: Lab) -> None:
    wrong = [lab.wrong(id) for id in beliefs(lab)]
    for place, texts in enumerate(wrong):
        assert texts not in (lab.reference(), *wrong[:place]), beliefs(lab)[place]
        for file, text in texts.items():
            compile(text, file, "exec")


@each_lab
def test_every_hole_has_a_task_and_three_hints(lab: Lab) -> None:
    for hole in lab.holes:
        assert len(hole.hints) == 3, hole.name
        assert "\n" not in hole.task
        assert hole.task.endswith((".", "?"))


@each_lab
def test_holes_are_cut_reproducibly_and_nothing_else_is(lab: Lab) -> None:
    texts, reference = lab.cut(), lab.reference()
    assert texts == lab.cut()
    for file, text in texts.items():
        holes = [hole.name for hole in lab.holes if hole.file == file and not hole.broken]
        assert open_holes(text, holes) == holes
        kept = [line for line in text.splitlines() if "TODO(" not in line]
        outside = set(reference[file].splitlines())
        added = [line for line in kept if line not in outside]
        if not any(hole.broken for hole in lab.holes):
            assert all(
                '"' in line or line.strip() in {"raise NotImplementedError(", ")"} for line in added
            )
        compile(text, file, "exec")


# ---------------------------------------------------------------- its page


@each_lab
def test_the_page_of_a_lab_has_all_its_parts(lab: Lab) -> None:
    text = (lab.folder / "README.md").read_text()
    assert text.startswith(f"# Lab {lab.number}: {lab.title}\n")
    headings = re.findall(r"^## (.+?)\s*$", prose(text), re.MULTILINE)
    assert [h for h in headings if h in README_PARTS] == README_PARTS
    for hole in lab.holes:
        assert hole.name in text, f"the page does not speak of {hole.name}"
    for target, _ in LINK.findall(text):
        if target and not target.startswith("http"):
            assert (lab.folder / target).resolve().exists(), target


@each_lab
def test_the_commands_on_the_page_of_a_lab_run(
    lab: Lab, say: Say, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", warm_python())
    commands = [c for f in fences((lab.folder / "README.md").read_text()) if f.info == "sh"
                for c in f.commands]  # fmt: skip
    assert any(f"./lab start {lab.number}" in command for command in commands)
    for command in commands:
        program, *words = shlex.split(command)
        if program == "./lab":
            assert say(*words)[0] == 0, command
        else:
            done = run_command(command, tmp_path)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


@each_lab
def test_a_lab_and_its_chapter_link_each_other(lab: Lab) -> None:
    chapter = ROOT / lab.chapter
    assert f"../../{lab.chapter}" in (lab.folder / "README.md").read_text()
    assert f"../labs/{lab.name}/README.md" in chapter.read_text()
    if lab.notebook:
        assert (ROOT / lab.notebook).exists(), lab.notebook


@each_lab
def test_reading_that_a_misconception_points_to_exists(lab: Lab) -> None:
    from tests.support.documents import anchors

    for belief in lab.misconceptions:
        file, _, anchor = belief.read.partition("#")
        assert (ROOT / file).exists(), belief.read
        assert not anchor or anchor in anchors((ROOT / file).read_text()), belief.read


# ---------------------------------------------------------------- the map


@each_lab
def test_the_map_of_the_labs_has_the_lab_with_its_minutes_and_what_comes_before_it(
    lab: Lab,
) -> None:
    chapter = lab.chapter.rpartition("/")[2]
    row = (
        f"| [{lab.number} {lab.title}]({lab.name}/README.md) | {lab.builds} | {lab.sittings} | "
        f"{', '.join(lab.after)} | {lab.without} | [{int(chapter[:2])}](../{lab.chapter}) |"
    )
    assert row in (ROOT / "labs/README.md").read_text(), f"labs/README.md wants:\n{row}"


@each_lab
def test_nobody_sits_for_longer_than_75_minutes(lab: Lab) -> None:
    assert max(map(int, lab.sittings.split("+"))) <= 75
    assert not lab.rest or lab.rest.hole < len(lab.holes)


@each_lab
def test_a_run_that_a_lab_promises_where_there_is_no_gpu_is_kept(lab: Lab) -> None:
    promised = f"{lab.without} {(lab.folder / 'README.md').read_text()}"
    kept = list((lab.folder / "captured").glob("*.json"))
    assert kept or not re.search(r"\bcaptured runs?\b", promised)


def test_the_short_path_stands_first_is_eight_hours_and_asks_for_no_lab_outside() -> None:
    text = (ROOT / "labs/README.md").read_text()
    path, rest = text.partition("## The short path")[2].split("## The branches")
    on_path = [lab for lab in LABS if lab.number in PATH]
    assert re.findall(r"^\| \[(\w+) ", path, re.M) == [lab.number for lab in on_path] == [*PATH]
    assert re.findall(r"^\| \[(\w+) ", rest, re.M) == [
        lab.number for lab in LABS if lab.number not in PATH
    ]
    assert 7.5 <= sum(lab.minutes for lab in on_path) / 60 <= 8.5
    assert all({*lab.after} <= {*PATH} for lab in on_path)


@each_lab
def test_a_lab_comes_after_those_that_it_asks_for(lab: Lab) -> None:
    numbers = [other.number for other in LABS]
    assert all(numbers.index(before) < numbers.index(lab.number) for before in lab.after)
