"""A hole that is a whole class: what of it stays, to be written, and what is taken out.

    parts_of(source, "GraphRunner", ["_record"])    the methods to write, and those that go
    without(source, ["GraphRunner._warm_up"])       the source without some functions and methods

Text in, text out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from labs.runner.cut.cutter import CutError, functions


def parts_of(source: str, name: str, keeps: Iterable[str] = ()) -> tuple[list[str], list[str]]:
    """The functions that a hole consists of, by full name: (to write, to take out).

    A function is its own only part. Of a class, one writes the public methods, those that Python
    calls (`__init__`) and those that `keeps` names; the other private ones are taken out. Raises
    `CutError` for a name that the source does not have, or a class with nothing to write.
    """
    known = functions(source)
    if name in known:
        return [name], []
    methods = [full.rpartition(".")[2] for full in known if full.startswith(f"{name}.")]
    keeps = set(keeps)
    if unknown := keeps - set(methods):
        raise CutError(f"{name} has no method {', '.join(sorted(unknown))}")
    stays = [m for m in methods if not m.startswith("_") or m.endswith("__") or m in keeps]
    if not stays:
        raise CutError(f"there is no function {name}, and no class with methods to write")
    return [f"{name}.{m}" for m in stays], [f"{name}.{m}" for m in methods if m not in stays]


def without(source: str, names: Iterable[str]) -> str:
    """The source without these functions and methods, and without the comments above them.

    Raises `CutError` for a function that the source does not have.
    """
    lines, known = source.splitlines(), functions(source)
    for name in names:
        if name not in known:
            raise CutError(f"there is no function {name}")
        node = known[name]
        first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
        while first > 1 and re.match(r"\s*(#|$)", source.splitlines()[first - 2]):
            first -= 1  # blank lines go, too
        for at in range(first - 1, node.end_lineno or first):
            lines[at] = "\0"
    return "\n".join(line for line in lines if line != "\0") + "\n"
