"""Lab 6 gives nothing away: the files to mend are six makes, and no comparison mends one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labs.lab06_debug_the_graph.incident import BELIEFS, INCIDENTS, loaded
from labs.runner.checks.checking import Outcome, check_texts
from labs.runner.checks.evidence import ANY
from labs.runner.checks.warm import context
from labs.runner.cut.catalogue import ROOT, lab_number
from labs.runner.cut.cutter import body_of, functions, splice

LAB = lab_number("6")
GIVEN, MENDED = LAB.to_mend(), LAB.reference()
FILES = list(GIVEN)
LINES_TOO_SHORT_TO_TELL = 20  # characters: `import numpy as np`, `) -> None:`

each_file = pytest.mark.parametrize("file", FILES)


def code(text: str) -> set[str]:
    """The lines of a text that say something, without indentation."""
    return {
        line.strip() for line in text.splitlines() if len(line.strip()) > LINES_TOO_SHORT_TO_TELL
    }


@each_file
def test_no_line_of_a_mend_stands_in_a_sibling_or_in_the_engines_runner(file: str) -> None:
    engine = (ROOT / "mini_engine/sim/graphs.py").read_text()
    others = [text for name, text in GIVEN.items() if name != file]
    new = code(MENDED[file]) - code(GIVEN[file])
    assert len(new) >= 1
    for other in [engine, *others]:
        assert not new & code(other)


def test_no_method_is_written_alike_in_two_of_the_files() -> None:
    """A vote over methods of one name, which mended all six when they were copies, finds no two."""
    bodies = [
        (name, "\n".join(line.strip() for line in body_of(text, name)))
        for text in GIVEN.values()
        for name in functions(text)
        if name != "diagnosis"
    ]
    written = [body for _, body in bodies if len(body) > 120]
    assert len(written) > 20
    assert len(set(written)) == len(written)


def failing(texts: dict[str, str], **which: Any) -> dict[str, list[Outcome]]:
    """One run of these tests of the lab: file -> what fails of its tests, in their order."""
    failed = check_texts(replace(LAB, limit_s=600), texts, context=context(), **which).failed
    return {
        file: [o for o in failed if o.test.startswith(f"test_{Path(file).stem}_")] for file in FILES
    }


def diagnosis_of(text: str) -> str:
    return "\n".join(["def diagnosis():", *body_of(text, "diagnosis")])


def test_a_sibling_in_the_place_of_a_runner_is_refused() -> None:
    """Mended, and with the right diagnosis: only that it is another runner is wrong with it."""
    siblings = dict(zip(FILES, [*FILES[1:], FILES[0]], strict=True))
    texts = {
        file: splice(MENDED[sibling], diagnosis_of(MENDED[file]))
        for file, sibling in siblings.items()
    }
    tests = {file: f"test_{Path(file).stem}_is_not_replaced_by_another" for file in FILES}
    for file, failed in failing(texts, expected=dict.fromkeys(tests.values(), ANY)).items():
        assert [outcome.test for outcome in failed] == [tests[file]]


def test_the_fault_itself_is_found_by_its_incident_once_it_is_diagnosed() -> None:
    texts = {file: splice(GIVEN[file], diagnosis_of(MENDED[file])) for file in FILES}
    for file, failed in failing(texts).items():
        assert failed, file
        assert f"test_{Path(file).stem}_is_diagnosed" not in {o.test for o in failed}


def test_a_mend_without_a_diagnosis_is_asked_for_it() -> None:
    texts = {file: splice(MENDED[file], diagnosis_of(GIVEN[file])) for file in FILES}
    for file, failed in failing(texts).items():
        assert failed[0].test == f"test_{Path(file).stem}_is_diagnosed"
        assert all("diagnosis" in o.message or o.test == failed[0].test for o in failed)


@pytest.mark.parametrize("letter", sorted(INCIDENTS))
def test_a_log_is_the_same_at_every_run_and_shows_the_incident_only_where_it_was(
    letter: str,
) -> None:
    file = f"runner_{letter}.py"
    logs = [INCIDENTS[letter](loaded(GIVEN[file], f"log_{n}")) for n in (1, 2)]
    assert logs[0] == logs[1]
    assert hurts(logs[0])
    assert not hurts(INCIDENTS[letter](loaded(MENDED[file], "log_mended")))


def hurts(log: list[str]) -> bool:
    """Does a log have a wrong answer, an error or a ruined adapter?"""
    answers = [line.removeprefix("answers").strip().split("; right: ") for line in log
               if line.startswith("answers")]  # fmt: skip
    wrong = any(told != right for told, right in answers)
    return wrong or any(line.startswith("error") or line.endswith("nonsense") for line in log)


def test_there_are_as_many_wrong_beliefs_to_choose_from_as_right_ones() -> None:
    told = {functions_belief(text) for text in MENDED.values()}
    assert told <= set(BELIEFS)
    assert len(told) == len(FILES)
    assert len(BELIEFS) >= 2 * len(told)


def functions_belief(text: str) -> str:
    belief: str = loaded(text, "belief").diagnosis()[0]
    return belief
