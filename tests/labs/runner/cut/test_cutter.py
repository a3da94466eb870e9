"""Cutting and splicing move text; everything else stays exactly as it was."""

from __future__ import annotations

import ast
import gc
from concurrent.futures import ThreadPoolExecutor

from labs.runner.cut.catalogue import all_labs, lab_number
from labs.runner.cut.cutter import (
    changed,
    cut,
    definition_of,
    functions,
    open_holes,
    splice,
    without,
)

SOURCE = '''"""A module."""

from __future__ import annotations

import math

LIMIT = 3  # of something


def area(r: float) -> float:
    """Of a circle."""
    # the old way
    return math.pi * r * r  # exact


class Box:
    """Holds."""

    def __init__(self, size: int) -> None:
        self.size = size

    @property
    def half(self) -> float:
        """Half of it."""
        # why: because
        whole = self.size
        return whole / 2
'''


def test_a_cut_keeps_signature_docstring_and_everything_around() -> None:
    text = cut(SOURCE, {"Box.half": (1, "Return half."), "area": (2, "Say 'pi'.")})
    assert "    @property\n    def half(self) -> float:\n" in text
    assert (
        '        """Half of it."""\n        raise NotImplementedError("TODO(1): Return half.")'
        in text
    )
    assert "whole" not in text
    assert "the old way" not in text, "a comment in a body may give the answer away"
    assert "LIMIT = 3  # of something" in text
    assert open_holes(text, ["Box.half", "area"]) == ["Box.half", "area"]
    assert open_holes(SOURCE, ["Box.half", "area"]) == []


def test_a_fragment_replaces_methods_functions_and_constants_and_adds_the_rest() -> None:
    fragment = '''"""An answer."""
import os


LIMIT = 4


class Box:
    def __init__(self, size):
        self.size = size + LIMIT

    def third(self):
        return helper(self.size)


def helper(x):
    return x / 3
'''
    text = splice(SOURCE, fragment)
    names: dict = {}
    exec(text, names)
    assert names["Box"](2).half == 3.0
    assert names["Box"](2).third() == 2.0
    assert names["os"] is not None
    assert "# why: because" in text
    assert text.startswith('"""A module."""')


def test_what_a_learner_changed_is_a_fragment_that_gives_it_back() -> None:
    mine = SOURCE.replace("return whole / 2", "return helper(whole)") + (
        "\n\nimport os\n\n\ndef helper(x):\n    return x * 0.5 + 0 * len(os.sep)\n"
    )
    fragment = changed(SOURCE, mine)
    assert "area" not in fragment
    assert "LIMIT" not in fragment
    names: dict = {}
    exec(splice(SOURCE, fragment), names)
    assert names["Box"](5).half == 2.5
    assert changed(SOURCE, SOURCE).strip() == ""


# ---------------------------------------------------------------- a class as a hole


COUNTER = '''"""A module."""


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


def test_what_is_taken_out_goes_with_its_decorators_and_the_comments_above_it() -> None:
    text = without(COUNTER, ["Counter._more", "helper"])
    for word in ("_more(n", "staticmethod", "how it is done", "-- parts", "def helper"):
        assert word not in text
    kept = definition_of(text, "Counter")
    assert "START = 0" in kept
    assert "return self._more(1)\n\n    def _hook" in kept, "one blank line between the others"
    ast.parse(text)


def test_texts_are_cut_in_several_threads_at_once() -> None:
    """Python run by the garbage collector amid a syntax tree, as hypothesis has some, lets another
    thread on."""
    labs, collected = all_labs()[:8], lambda *_: sum(range(100))
    gc.callbacks.append(collected)
    try:
        with ThreadPoolExecutor(2) as threads:
            assert len({*threads.map(lambda lab: str(lab.cut()), labs)}) == len(labs)
    finally:
        gc.callbacks.remove(collected)


def test_a_class_is_an_open_hole_until_none_of_its_methods_raises_a_todo() -> None:
    text = cut(COUNTER, {"Counter.count": (1, "Write it.")})
    assert open_holes(text, ["Counter", "helper"]) == ["Counter"]
    assert open_holes(COUNTER, ["Counter"]) == []


def test_the_learners_file_of_lab_5_has_nothing_of_the_class_but_its_promises() -> None:
    lab = lab_number("5")
    (text,), (engine,) = lab.cut().values(), lab.reference().values()
    write = [name for hole in lab.holes for name in hole.writes]
    gone = [name for hole in lab.holes for name in hole.removes]
    assert open_holes(text, write) == write
    methods = {name for name in functions(engine) if name.startswith("GraphRunner.")}
    assert methods - {*write, *gone} == {"GraphRunner.__init__", "GraphRunner.run"}, "given"
    assert [name for name in gone if name.rpartition(".")[2] in text] == []
    assert lab.definitions() == [(hole, list(hole.writes)) for hole in lab.holes]
    assert lab.covered() == [(hole, [*hole.writes, *hole.removes]) for hole in lab.holes]
