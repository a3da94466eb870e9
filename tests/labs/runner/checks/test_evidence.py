"""What a failing test shows of itself: its own line, the inputs of its case, the whole reason."""

from __future__ import annotations

import types
from pathlib import Path
from typing import Any

import pytest

from labs.runner.checks.difference import Compared, difference
from labs.runner.checks.evidence import explained

TEST_FILE = """
CASES = {"short": 3, "long": 5}
KIND = type
LIMIT = 4


def assert_below(got, limit):
    assert got < limit, "too large"


def test_a_case(name="long"):
    asked = CASES[name]
    assert_below(len(str(KIND(asked))) + CASES[name], LIMIT)


class Machine:
    pass


def test_of_a_machine():
    machine, speed = Machine(), 7
    assert vars(machine).get("speed") == speed


def test_a_helper_that_prepares():
    return prepared()


def prepared():
    assert LIMIT < 0


def test_a_long_reason():
    raise ValueError("a reason of many words " * 50)
"""


def failed(folder: Path, test: str) -> dict[str, Any]:
    """The evidence of one of the tests above."""
    path = folder / "test_lab.py"
    path.write_text(TEST_FILE)
    module = types.ModuleType("test_lab")
    exec(compile(TEST_FILE, str(path), "exec"), vars(module))
    with pytest.raises((AssertionError, ValueError)) as caught:
        getattr(module, test)()
    return explained(caught.value, [], str(path))


def test_the_line_of_a_test_is_where_it_calls_what_compares_not_inside(tmp_path: Path) -> None:
    told = failed(tmp_path, "test_a_case")
    assert told["asserted"] == "assert_below(len(str(KIND(asked))) + CASES[name], LIMIT)"
    assert told["message"] == "too large"
    assert told["where"].endswith(":13")


def test_a_helper_that_does_more_than_compare_shows_its_own_line(tmp_path: Path) -> None:
    assert failed(tmp_path, "test_a_helper_that_prepares")["asserted"] == "assert LIMIT < 0"


def test_of_constants_only_numbers_are_shown(tmp_path: Path) -> None:
    assert failed(tmp_path, "test_a_case")["inputs"] == "asked=5, name='long', LIMIT=4"


def test_an_object_that_has_nothing_to_show_is_left_out(tmp_path: Path) -> None:
    assert "Machine" not in failed(tmp_path, "test_of_a_machine")["inputs"]


def test_a_long_line_is_cut_where_one_sees_it(tmp_path: Path) -> None:
    told = failed(tmp_path, "test_a_long_reason")["message"]
    assert told.endswith(" …")
    assert len(told) == 300


def test_of_two_sets_only_the_side_that_has_more_says_so() -> None:
    told = difference(Compared("==", set(), {1}))
    assert told == {"got": "{}", "expected": "{1}, missing: {1}"}
    told = difference(Compared("==", {1, 2}, {1}))
    assert told == {"got": "{1, 2}, too many: {2}", "expected": "{1}"}
