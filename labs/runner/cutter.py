"""Cutting holes into a file of the engine, and filling them: text in, text out.

    cut(source, {"GraphRunner.run_at": (1, "Pad, replay.")})     what a learner gets
    splice(source, fragment)        the source with some definitions replaced by those of a fragment
    changed(source, mine)           a fragment: the definitions of `mine` that the source has not

A *hole* is a function or method whose body is `raise NotImplementedError("TODO(1): …")`; its
signature, its docstring and everything around it stay as they are. A *fragment* is a few lines of
Python with the definitions that it wants to replace; a wrong answer and a second right answer are
fragments:

    class GraphRunner:
        def run(self, num_rows, arrays):
            self.inputs = arrays          # the rest of GraphRunner stays

Definitions that the source does not have are added; so are imports. Line comments survive, since
text is moved and nothing is printed from a syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping

WIDTH = 100
TODO = re.compile(r'TODO\((\d+)\): ?([^\n"]*)')

Definition = ast.FunctionDef | ast.ClassDef
Lines = list[str]


class CutError(ValueError):
    """A hole or a fragment that does not fit its source."""


def cut(source: str, holes: Mapping[str, tuple[int, str]]) -> str:
    """Replace the body of each named function by its TODO. `holes`: name -> (number, task)."""
    lines, tree = source.splitlines(), ast.parse(source)
    edits = []
    for name, (number, task) in holes.items():
        node = _function(tree, name)
        first = _body_begins(node, lines)
        indent = " " * node.body[0].col_offset
        edits.append((first, node.end_lineno or first, _todo(number, task, indent)))
    return _replaced(lines, edits)


def open_holes(text: str, names: Iterable[str]) -> list[str]:
    """Those of the named functions whose body still is a TODO. Missing ones raise `CutError`."""
    tree = ast.parse(text)
    return [name for name in names if _is_open(_function(tree, name))]


def splice(source: str, fragment: str) -> str:
    """The source with the definitions of the fragment in the place of its own."""
    lines, tree = source.splitlines(), ast.parse(source)
    new_lines, new = fragment.splitlines(), ast.parse(fragment)
    edits: list[tuple[int, int, Lines]] = []
    imports: Lines = []
    added: Lines = []
    for node in new.body:
        text = new_lines[_start(node) - 1 : node.end_lineno]
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += [] if _is_future(node) else text
        elif isinstance(node, ast.ClassDef) and (old := _find(tree, node.name)) is not None:
            edits += _members(old, node, new_lines)
        elif (old := _find(tree, _name(node))) is not None:
            edits.append((_start(old), old.end_lineno or 0, text))
        elif not _is_docstring(node):
            added += ["", "", *text]
    if imports:
        after = max((n.end_lineno or 0 for n in tree.body if _is_import(n)), default=0)
        edits.append((after + 1, after, imports))
    return _replaced([*lines, *added], edits)


def changed(source: str, mine: str) -> str:
    """A fragment with every definition of `mine` that says something else than the source's."""
    tree, other, lines = ast.parse(source), ast.parse(mine), mine.splitlines()
    known = {ast.dump(node) for node in tree.body if _is_import(node)}
    out: Lines = []
    for node in other.body:
        old = _find(tree, _name(node))
        if old is not None and ast.dump(old) == ast.dump(node):
            continue
        if (_is_import(node) and ast.dump(node) in known) or _is_docstring(node):
            continue
        if not (isinstance(node, ast.ClassDef) and isinstance(old, ast.ClassDef)):
            out += lines[_start(node) - 1 : node.end_lineno]
            continue
        same = {ast.dump(member) for member in old.body}
        out.append(f"class {node.name}:")
        for member in node.body:
            if ast.dump(member) not in same and not _is_docstring(member):
                out += lines[_start(member) - 1 : member.end_lineno]
    return "\n".join(out) + "\n"


def find_source(fragment: str, sources: Mapping[str, str]) -> dict[str, str]:
    """Which part of a fragment belongs to which source: file -> fragment.

    Each definition goes to the source that has it; what none has, and imports, go to the file that
    the first known definition went to. A fragment that replaces nothing raises `CutError`.
    """
    lines, tree = fragment.splitlines(), ast.parse(fragment)
    trees = {file: ast.parse(text) for file, text in sources.items()}
    homes = [
        next((f for f, t in trees.items() if _find(t, _name(node)) is not None), None)
        for node in tree.body
    ]
    first = next((home for home in homes if home), None)
    if first is None:
        raise CutError(f"replaces nothing: none of its names stands in {', '.join(sources)}")
    parts: dict[str, Lines] = {}
    for node, home in zip(tree.body, homes, strict=True):
        if not _is_docstring(node):
            text = lines[_start(node) - 1 : node.end_lineno]
            parts.setdefault(home or first, []).extend(text)
    return {file: "\n".join(text) + "\n" for file, text in parts.items()}


def body_of(source: str, name: str) -> str:
    """The text of one function or method, as it stands."""
    node = _function(ast.parse(source), name)
    return "\n".join(source.splitlines()[_start(node) - 1 : node.end_lineno])


# ---------------------------------------------------------------- parts


def _todo(number: int, task: str, indent: str) -> Lines:
    text = f"TODO({number}): {task}".replace('"', "'")
    one = f'{indent}raise NotImplementedError("{text}")'
    if len(one) <= WIDTH:
        return [one]
    words, rows, room = text.split(" "), [""], WIDTH - len(indent) - 6
    for word in words:
        if len(rows[-1]) + len(word) + 1 > room:
            rows.append("")
        rows[-1] += f"{word} "
    rows[-1] = rows[-1].rstrip()
    inner = [f'{indent}    "{row}"' for row in rows]
    return [f"{indent}raise NotImplementedError(", *inner, f"{indent})"]


def _is_open(node: ast.FunctionDef) -> bool:
    """A body that raises its TODO, wherever in it: half a solution is still a hole."""
    raised = [n for n in ast.walk(node) if isinstance(n, ast.Raise) and n.exc is not None]
    return any("NotImplementedError" in ast.dump(n) and "TODO(" in ast.dump(n) for n in raised)


def _members(old: ast.stmt, new: ast.ClassDef, lines: Lines) -> list[tuple[int, int, Lines]]:
    """Edits that put the members of `new` in the place of those of `old`, or at its end."""
    if not isinstance(old, ast.ClassDef):
        raise CutError(f"{new.name} is not a class in the source")
    edits = []
    for member in new.body:
        if _is_docstring(member) or isinstance(member, ast.Pass):
            continue
        text = lines[_start(member) - 1 : member.end_lineno]
        there = _find(old, _name(member))
        if there is not None:
            edits.append((_start(there), there.end_lineno or 0, text))
        else:
            end = old.end_lineno or 0
            edits.append((end + 1, end, ["", *text]))
    return edits


def _replaced(lines: Lines, edits: list[tuple[int, int, Lines]]) -> str:
    """Lines `first` to `last` (from 1, both in) replaced; last = first - 1 inserts before first."""
    out = list(lines)
    for first, last, text in sorted(edits, key=lambda edit: edit[0], reverse=True):
        out[first - 1 : last] = text
    return "\n".join(out) + "\n"


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    node: ast.AST | None = tree
    for part in name.split("."):
        node = _find(node, part) if node is not None else None
    if not isinstance(node, ast.FunctionDef):
        raise CutError(f"there is no function {name}")
    return node


def _find(parent: ast.AST, name: str | None) -> ast.stmt | None:
    children = getattr(parent, "body", [])
    return next((c for c in children if name is not None and _name(c) == name), None)


def _name(node: ast.AST) -> str | None:
    """What a definition or an assignment gives a name to."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def _start(node: ast.stmt) -> int:
    """The first line, decorators included."""
    decorators = getattr(node, "decorator_list", [])
    return min(node.lineno, *(int(d.lineno) for d in decorators), node.lineno)


def _body_begins(node: ast.FunctionDef, lines: Lines) -> int:
    """The line after the docstring, or after the signature where there is none."""
    if _is_docstring(node.body[0]):
        return (node.body[0].end_lineno or 0) + 1
    first = _start(node.body[0])
    while first - 1 > node.lineno and lines[first - 2].strip().startswith(("#",)):
        first -= 1
    return first


def _is_docstring(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    )


def _is_import(node: ast.AST) -> bool:
    return isinstance(node, ast.Import | ast.ImportFrom)


def _is_future(node: ast.AST) -> bool:
    return isinstance(node, ast.ImportFrom) and node.module == "__future__"
