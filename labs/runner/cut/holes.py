"""Which hole does a test belong to? Read from the names in the text of the tests.

In:  a lab, and names of tests as pytest gives them, `test_a_step[3]`. Out: numbers of holes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from labs.runner.cut.catalogue import Lab, read_lab
from labs.runner.cut.cutter import functions, name_of, parsed


def holes_of(lab: Lab, test: str) -> tuple[int, ...]:
    """Numbers of the holes that a test uses, as far as its text and that of its helpers names them
    or, where a hole has `calls`, what it is called by; a file to mend is named by the test
    (`test_runner_a_hears`, or a case `a`)."""
    function, _, case = test.partition("[")
    names = _named_by(lab.test_file).get(function, frozenset()) | {
        case.rstrip("]").replace(" ", "_")
    }
    return tuple(
        hole.number
        for hole in lab.holes
        if (
            re.search(rf"(^|_){Path(hole.file).stem}_|\[{Path(hole.file).stem[-1]}\b", test)
            if hole.broken
            else {*(hole.calls or (hole.name.rpartition(".")[2],))} & names
        )
    )


def reached_from(lab: Lab, test: str) -> set[int]:
    """The holes that a test uses, and those that the engine's functions go on to from there."""
    function = test.partition("[")[0]
    names = _names_of(lab.folder)
    test_names = {function: set(_named_by(lab.test_file).get(function, frozenset()))}
    found = _with_helpers(function, {**names, **test_names})
    by_name = {hole.number for hole in lab.holes if hole.name.rpartition(".")[2] in found}
    return by_name | {*holes_of(lab, test)}


@cache
def _names_of(folder: Path) -> dict[str, set[str]]:
    """Each function of a lab's files, without its class -> every name in it."""
    names: dict[str, set[str]] = {}
    for text in read_lab(folder).reference().values():
        for full_name, node in functions(text).items():
            names.setdefault(full_name.rpartition(".")[2], set()).update(_names(node))
    return names


def hole_of(lab: Lab, test: str) -> int:
    """The hole that a test belongs to: the last that it uses, for what the earlier ones do by
    themselves has been tested before it. A test that names none uses all of them."""
    return max(holes_of(lab, test), default=len(lab.holes))


def tests_of(lab: Lab, hole: int, tests: Iterable[str]) -> set[str]:
    """The tests that belong to a hole or, where there are none, that use it, or else all."""
    uses = {test for test in tests if hole in holes_of(lab, test)}
    return {test for test in uses if hole_of(lab, test) == hole} or uses or set(tests)


@cache
def _named_by(test_file: Path) -> dict[str, frozenset[str]]:
    """Each definition of the test file -> every name in it and in the helpers that it uses."""
    names: dict[str, set[str]] = {}
    for node in parsed(test_file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            for method in _methods(node):  # of whichever class: a test uses it if it names it
                names.setdefault(method.name, set()).update(_names(method))
                node.body.remove(method)
        if name := name_of(node):
            names[name] = _names(node)
    return {name: frozenset(_with_helpers(name, names)) for name in names}


def _methods(node: ast.ClassDef) -> list[ast.FunctionDef]:
    """Those of a class that are called by their names, `__init__` is not."""
    methods = [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return [method for method in methods if not method.name.startswith("__")]


def _names(node: ast.AST) -> set[str]:
    """Every name in a definition, less its variables, whatever function is called as one is."""
    every = {getattr(n, "id", getattr(n, "attr", getattr(n, "arg", ""))) or ""
             for n in ast.walk(node)}  # fmt: skip
    return every - {
        n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }


def _with_helpers(name: str, names: Mapping[str, set[str]]) -> set[str]:
    found, todo = set[str](), [name]
    while todo:
        new = names[todo.pop()] - found
        found |= new
        todo += new & names.keys()
    return found
