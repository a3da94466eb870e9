"""A lab whose files are given with a fault, and edits that make an answer of a text."""

from __future__ import annotations

from dataclasses import replace

import pytest

from labs.runner.cut.catalogue import lab_number
from labs.runner.cut.cutter import CutError
from labs.runner.cut.edits import Edit

LAB = lab_number("6")


def test_a_file_to_mend_is_given_as_it_stands_and_the_reference_is_mended() -> None:
    given, reference = LAB.to_mend(), LAB.reference()
    assert LAB.cut() == given
    for file, path in LAB.sources.items():
        assert given[file] == (LAB.folder.parent.parent / path).read_text()
        assert given[file] != reference[file]


def test_the_functions_of_a_file_to_mend_are_those_of_its_mend() -> None:
    hole, names = LAB.definitions()[3]
    assert hole.name == "runner_d.py"
    assert names == ["diagnosis", "Play.rehearse"]


def test_an_edit_is_made_once_in_its_place_and_a_body_where_it_names_no_text() -> None:
    texts = {"one.py": 'LEAST = 1\n\n\ndef f(x: int) -> int:\n    """F."""\n    return x + 1\n'}
    assert Edit("LEAST", old="= 1", new="= 2").applied(texts)["one.py"].startswith("LEAST = 2\n")
    assert Edit("f", old="+ 1", new="- 1").applied(texts)["one.py"].endswith("    return x - 1\n")
    written = Edit("f", "y = x\nreturn y\n").applied(texts)["one.py"]
    assert written.endswith('    """F."""\n    y = x\n    return y\n')


@pytest.mark.parametrize("old", ["no such text", "self"], ids=["gone", "often"])
def test_an_edit_that_no_longer_fits_names_lab_misconception_place_and_text(old: str) -> None:
    belief = LAB.misconceptions[0]
    stale = replace(belief, edits=(replace(belief.edits[0], place="Letters.stage", old=old),))
    lab = replace(LAB, misconceptions=(stale,))
    with pytest.raises(CutError) as error:
        lab.texts(f"wrong/{belief.id}")
    for word in (LAB.name, belief.id, "Letters.stage", repr(old)):
        assert word in str(error.value)
