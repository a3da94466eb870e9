"""A wrong answer as edits of the right one. Texts in, texts out.

    [[misconception.edit]]
    in = "GraphRunner.run_at"   # a function, a class or a constant, or a whole file: "graphs.py"
    old = "graph.replay()"      # a text that occurs there once
    new = "self.forward(rung)"  # what a wrong answer has in its place

Without `old`, `new` is the whole body of the function, below its signature and docstring. An `old`
that does not occur, or occurs twice, raises `CutError`: the engine has changed, and the edit has to
follow.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from labs.runner.cut.cutter import CutError, fill, find, lines_of, parsed


@dataclass(frozen=True)
class Edit:
    """One change of one place. Texts and places are taken literally, indentation included."""

    place: str
    new: str
    old: str = ""

    def applied(self, texts: Mapping[str, str]) -> dict[str, str]:
        """The files with this change. Exactly one of them has the place."""
        if self.place in texts:
            return {**texts, self.place: self._replaced(texts[self.place])}
        files = {file: node for file, text in texts.items() if (node := _node(text, self.place))}
        if len(files) != 1:
            raise CutError(f"{self.place} stands in {len(files)} of {', '.join(texts)}: name one")
        ((file, node),) = files.items()
        if not self.old:
            return {**texts, file: fill(texts[file], {self.place: self.new.splitlines()})}
        lines = texts[file].splitlines(keepends=True)
        last = node.end_lineno or 0
        first = last - len(lines_of(node, lines))
        edited = self._replaced("".join(lines[first:last]))
        return {**texts, file: "".join([*lines[:first], edited, *lines[last:]])}

    def _replaced(self, text: str) -> str:
        found = text.count(self.old) if self.old else 0
        if found != 1:
            raise CutError(f"{self.place} has {found} times, and not once: {self.old.strip()!r}")
        return text.replace(self.old, self.new)


def edits(entries: Iterable[Mapping[str, str]]) -> tuple[Edit, ...]:
    """The edits of a table of TOML: each with `in`, `new` and perhaps `old`."""
    return tuple(Edit(entry["in"], entry["new"], entry.get("old", "")) for entry in entries)


@lru_cache(maxsize=32)  # the files of one lab, and of its edits so far
def _tree(text: str) -> ast.Module:
    return parsed(text)


def _node(text: str, place: str) -> ast.stmt | None:
    node: ast.AST | None = _tree(text)
    for name in place.split("."):
        node = find(node, name) if node is not None else None
    return node if isinstance(node, ast.stmt) else None
