"""A class as a hole: its public methods become TODOs, its private ones go, the rest stays."""

from __future__ import annotations

import ast

import pytest

from labs.runner.cut.catalogue import lab_number
from labs.runner.cut.class_hole import parts_of, without
from labs.runner.cut.cutter import CutError, cut, definition_of, open_holes

SOURCE = '''"""A module."""


class Counter:
    """Counts."""

    START = 0

    def __init__(self) -> None:
        """Begins at the start."""
        self._n = self.START

    def count(self) -> int:
        """One more."""
        return self._more(1)

    # -- parts ----------------

    # how it is done
    @staticmethod
    def _more(n: int) -> int:
        return n + 1

    def _hook(self) -> int:
        """For subclasses."""
        return 3


def helper() -> int:
    return 4
'''


def test_of_a_class_the_public_methods_and_those_it_keeps_are_to_be_written() -> None:
    write, gone = parts_of(SOURCE, "Counter", ["_hook"])
    assert write == ["Counter.__init__", "Counter.count", "Counter._hook"]
    assert gone == ["Counter._more"]
    assert parts_of(SOURCE, "Counter")[1] == ["Counter._more", "Counter._hook"]
    assert parts_of(SOURCE, "helper") == (["helper"], [])


def test_what_is_taken_out_goes_with_its_decorators_and_the_comments_above_it() -> None:
    text = without(SOURCE, ["Counter._more", "helper"])
    for word in ("_more(n", "staticmethod", "how it is done", "-- parts", "def helper"):
        assert word not in text
    kept = definition_of(text, "Counter")
    assert "START = 0" in kept
    assert "return self._more(1)\n\n    def _hook" in kept, "one blank line between the others"
    ast.parse(text)


def test_a_class_is_an_open_hole_until_none_of_its_methods_raises_a_todo() -> None:
    text = cut(SOURCE, {"Counter.count": (1, "Write it.")})
    assert open_holes(text, ["Counter", "helper"]) == ["Counter"]
    assert open_holes(SOURCE, ["Counter"]) == []


@pytest.mark.parametrize(
    ("name", "keeps"), [("Nothing", []), ("Counter", ["_nothing"]), ("START", [])]
)
def test_a_class_hole_that_does_not_fit_its_source_is_refused(name: str, keeps: list[str]) -> None:
    with pytest.raises(CutError):
        parts_of(SOURCE, name, keeps)
    with pytest.raises(CutError):
        without(SOURCE, ["Counter.nothing"])


def test_the_learners_file_of_lab_5_has_nothing_of_the_class_but_its_promises() -> None:
    lab = lab_number(5)
    (hole,) = lab.holes
    text, engine = lab.cut()[hole.file], lab.reference()[hole.file]
    write, gone = hole.parts(engine)
    assert open_holes(text, write) == write
    assert {"GraphRunner._warm_up", "StaticInputs.stage"} <= set(gone)
    assert [
        name for name in gone if name.rpartition(".")[2] in text.split("class Piecewise")[0]
    ] == []
    assert lab.definitions() == [(hole, write)]
    assert lab.covered() == [(hole, [*write, *gone])]


def test_another_right_answer_is_put_into_the_cut_file() -> None:
    lab = lab_number(5)
    assert "def _capture_rung" not in lab.texts("second")["graphs.py"]
