"""A learner who started before the engine's files moved loses nothing: `labs update`."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from labs.runner import workspace
from labs.runner.cut.catalogue import Hole, Lab, lab_number
from labs.runner.cut.cutter import body_of, cut
from labs.runner.cut.migrate import Migrated, broken_imports, migrate
from labs.runner.workspace import LabState, Progress
from tests.labs.conftest import Say

IMPORT = re.compile(r"^from mini_engine\.(?:\w+\.)+(\w+) import", re.MULTILINE)


def old_home(lab: Lab, texts: dict[str, str], *, passed: bool = False) -> dict[Path, str]:
    """Write a lab's files as an older engine had them: other file names, modules without rooms.

    Returns what was written.
    """
    folder = workspace.home() / lab.name
    folder.mkdir(parents=True)
    written = {
        folder / f"old_{file}": IMPORT.sub(r"from mini_engine.\1 import", text)
        for file, text in texts.items()
    }
    for path, text in written.items():
        path.write_text(text)
    state = LabState(started="2026-01-01", source_hash="older", passed="2026-01-02" * passed)
    workspace.save_progress(Progress({lab.number: state}, lab.number))
    return written


def standing(say: Say, lab: Lab) -> dict[str, Any]:
    found: list[dict[str, Any]] = json.loads(say("list", "--json")[1])
    return next(one for one in found if one["lab"] == lab.name)


def backups(lab: Lab) -> list[str]:
    return sorted(p.read_text() for p in (workspace.home() / lab.name).glob("*.bak"))


# ---------------------------------------------------------------- as the learner meets it


@pytest.mark.parametrize(
    "number", ["7", *(pytest.param(n, marks=pytest.mark.slow) for n in ("9b", "10"))]
)
def test_an_answer_with_helpers_of_its_own_survives_and_passes(say: Say, number: str) -> None:
    lab = lab_number(number)
    written = old_home(lab, lab.texts("second"), passed=True)
    code, said = say("update", number)
    assert code == 0
    assert all(hole.name in said for hole in lab.holes)
    assert backups(lab) == sorted(written.values())
    assert standing(say, lab) | {"state": "passed", "stale": False} == standing(say, lab)
    code, said = say("check", number)
    assert code == 0, said
    assert not list((workspace.home() / lab.name).glob("old_*.py"))


@pytest.mark.parametrize("number", [pytest.param("7", marks=pytest.mark.slow), "9b"])
def test_a_half_solved_lab_keeps_its_half_and_names_the_rest(say: Say, number: str) -> None:
    lab = lab_number(number)
    undone = lab.holes[1::2]
    old_home(lab, lab.cut(undone))
    assert say("update")[0] == 0
    code, said = say("check", "--json")
    assert code == 1
    assert [int(n) for n in json.loads(said)["todos"]] == [hole.number for hole in undone]


def test_a_mended_file_keeps_what_was_mended_and_the_others_stay_to_be_mended(say: Say) -> None:
    lab = lab_number("6")
    given = lab.cut()
    first = lab.holes[0].file
    texts = given | {first: lab.reference()[first]}
    folder = workspace.home() / lab.name
    old_home(lab, texts)
    for path in list(folder.glob("old_*.py")):
        path.rename(folder / path.name.removeprefix("old_"))
    assert standing(say, lab)["stale"], "the imports of these files lead nowhere"
    found = json.loads(say("update", "6", "--json")[1])[0]
    assert found["open"] == [hole.name for hole in lab.holes[1:]]
    for name in lab.definitions()[0][1]:
        assert body_of((folder / first).read_text(), name) == body_of(texts[first], name)


@pytest.mark.parametrize(
    "words", [["check"], ["start", "9b"], ["diff"], ["watch"], ["check", "9b"]]
)
def test_until_then_every_command_says_what_to_do_and_touches_nothing(
    say: Say, words: list[str]
) -> None:
    lab = lab_number("9b")
    written = old_home(lab, lab.reference(), passed=True)
    code, said = say(*words)
    assert code == 2
    assert "./lab update 9b" in said
    assert len(said.strip().splitlines()) == 1
    found = {p: p.read_text() for p in (workspace.home() / lab.name).iterdir()}
    assert found == written


def test_the_list_names_a_stale_lab_and_counts_it_as_passed(say: Say) -> None:
    lab = lab_number("9b")
    old_home(lab, lab.reference(), passed=True)
    code, said = say()
    assert code == 0
    assert "1 of 22" in said
    assert "./lab update 9b" in said
    shutil.rmtree(workspace.home() / lab.name)
    assert standing(say, lab)["state"] == "", "a lab whose folder was removed can be started anew"
    assert say("start", "9b")[0] == 0


def test_a_hole_that_is_new_or_has_a_new_name_is_left_to_write(say: Say) -> None:
    lab = lab_number("4")
    texts = {f: t.replace("def utilisation", "def busy_share") for f, t in lab.reference().items()}
    old_home(lab, texts, passed=True)
    code, said = say("update")
    assert code == 0
    assert "still open     utilisation" in said
    assert "busy_share" in said
    assert standing(say, lab)["state"] == "failed"


def test_a_file_that_is_not_python_is_named_with_its_line_and_kept(say: Say) -> None:
    labs = [lab_number("4"), lab_number("9b")]
    for lab in labs:
        written = old_home(lab, lab.reference())
    state = LabState(started="2026-01-01", source_hash="older")
    workspace.save_progress(Progress({"4": state, "9b": state}, "9b"))
    broken = next(path for path in written if "dispatcher" in path.name)
    broken.write_text("x = 1\ndef broken(:\n")
    code, said = say("update")
    assert code == 2
    assert f"{broken.name}:2: SyntaxError" in said
    assert broken.read_text() == "x = 1\ndef broken(:\n"
    assert {path.name for path in broken.parent.iterdir()} == {path.name for path in written}
    assert not standing(say, labs[0])["stale"], "the others are updated all the same"


def test_a_file_of_the_learners_that_has_no_hole_stays_where_it_is(say: Say) -> None:
    lab = lab_number("4")
    old_home(lab, lab.reference())
    notes = workspace.home() / lab.name / "notes.py"
    notes.write_text("print('an experiment')\n")
    code, said = say("update")
    assert code == 0
    assert "notes.py" in said
    assert notes.read_text() == "print('an experiment')\n"
    assert len(backups(lab)) == 1


def test_a_folder_with_the_number_of_an_older_course_is_told_its_name_of_today(say: Say) -> None:
    (old := workspace.home() / "lab20_static_cache").mkdir(parents=True)
    rc, printed = say("update")
    assert rc == 0
    assert f"{old.name} has the number of an older course: rename it to lab07b_static_cache" in (
        " ".join(printed.split())
    )


def test_without_need_nothing_is_touched(say: Say) -> None:
    say("start", "4")
    lab = lab_number("4")
    (path,) = workspace.my_files(lab).values()
    before = path.read_text()
    for words in (["update"], ["update", "4"]):
        assert say(*words, "--json") == (0, "[]\n")
    assert path.read_text() == before
    assert say("update", "3")[0] == 2, "it is not started"


# ---------------------------------------------------------------- what moves over


ENGINE = '''"""Of the engine."""

from __future__ import annotations

from mini_engine.model.config import ModelConfig


class Box:
    def __init__(self, size: int) -> None:
        self.size = size

    def half(self, exact: bool) -> float:
        """Half of it."""
        return self.size / 2


def area(r: float) -> float:
    """Of a circle."""
    return 3.0 * r * r
'''
TASKS = {"Box.half": (1, "Return half."), "area": (2, "Say pi.")}
HOLES = [(Hole(i, name, task, (), "box.py"), [name]) for name, (i, task) in TASKS.items()]
FRESH = {"box.py": cut(ENGINE, TASKS)}


def moved(old: str) -> Migrated:
    return migrate(FRESH, {"case.py": old}, HOLES)


def test_what_the_code_uses_comes_along_and_what_nobody_uses_does_not() -> None:
    done = moved("""
import math, os
from mini_engine.config import ModelConfig
from mini_engine.hardware import load_spec
from mini_engine.hardware import never_was

PARTS = 2
UNUSED = 3


class Box:
    def __init__(self, size):
        self.size = size

    def half(self, exact):
        # why: because
        whole = self._whole(self.size)
        return whole / PARTS  # exact

    def _whole(self, size):
        return Helper().of(size) + never_was + 0 * len(load_spec.__name__)

    def nobody_asks(self):
        return os.sep


def area(r): return math.pi * r * r


class Helper:
    def of(self, size):
        return size
""")
    text = done.texts["box.py"]
    assert "        # why: because\n        whole = self._whole(self.size)" in text
    assert "return whole / PARTS  # exact" in text
    assert '"""Half of it."""' in text
    assert "import math\n" in text
    assert "from mini_engine.step.cards import load_spec" in text
    assert "import os" not in text
    assert "UNUSED" not in text
    assert "nobody_asks" not in text
    assert done.helpers == ["math", "load_spec", "PARTS", "Box._whole", "Helper"]
    assert any("never_was" in remark for remark in done.remarks)
    assert any("Box.nobody_asks" in remark for remark in done.remarks)
    names: dict[str, Any] = {"never_was": 0}
    exec(text, names)
    assert names["Box"](5).half(True) == 2.5
    assert 3.14 < names["area"](1) < 3.15


def test_an_import_is_gone_only_if_its_module_or_its_name_is() -> None:
    """A folder of data bears the name of a module that stands beside it."""
    assert broken_imports("from mini_engine.step.cards import load_spec") == []
    gone = "from mini_engine.step.cards import never_was"
    assert broken_imports(gone) == ["mini_engine.step.cards.never_was"]


def test_half_a_solution_is_carried_over_under_the_number_that_its_hole_has_now() -> None:
    done = moved("""
def area(r):
    square = r * r
    raise NotImplementedError("TODO(7): Say pi.")
""")
    assert (
        'square = r * r\n    raise NotImplementedError("TODO(2): Say pi.")' in done.texts["box.py"]
    )
    assert done.holes == ["area"]
