"""Cutting holes into a file of the engine, and filling them: text in, text out.

    cut(source, {"GraphRunner.run_at": (1, "Pad, replay.")})     what a learner gets
    splice(source, fragment)        the source with some definitions replaced by those of a fragment
    changed(source, mine)           a fragment: the definitions in which `mine` differs from it

A *hole* is a function or method whose body is `raise NotImplementedError("TODO(1): …")`; its
signature, its docstring and everything around it stay as they are. A *fragment* is a piece of
Python that has only the definitions to be replaced, for example:

    class GraphRunner:
        def run(self, num_rows, arrays):
            self.inputs = arrays          # the rest of GraphRunner stays

Definitions and imports that the source lacks are added. Comments survive, because lines of text are
moved and nothing is printed from a syntax tree.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Mapping
from threading import Lock

WIDTH = 100
PARSING = Lock()  # Python 3.11 counts one depth for the syntax trees of all threads (gh-106905)
TODO = re.compile(r'TODO\((\d+)\): ?([^\n"]*)')

Lines = list[str]


class CutError(ValueError):
    """A hole or a fragment that does not fit its source."""


def parsed(source: str) -> ast.Module:
    """The syntax tree, in one thread at a time."""
    with PARSING:
        return ast.parse(source)


def cut(source: str, holes: Mapping[str, tuple[int, str]]) -> str:
    """Replace the body of each named function by its TODO. `holes`: name -> (number, task)."""
    todos = {}
    for name, (number, task) in holes.items():
        indent = " " * _function(parsed(source), name).body[0].col_offset
        todos[name] = _todo(number, task, indent)
    return fill(source, todos)


def fill(source: str, bodies: Mapping[str, Lines]) -> str:
    """Put these lines in the place of functions' bodies; signatures and docstrings stay."""
    lines, tree = source.splitlines(), parsed(source)
    edits = []
    for name, body in bodies.items():
        node = _function(tree, name)
        first = _body_begins(node, lines)
        edits.append((first, node.end_lineno or first, _indented(body, node.body[0].col_offset)))
    return _replaced(lines, edits)


def without(source: str, names: Iterable[str]) -> str:
    """The source without these functions and methods, and without the comments above them.

    Raises `CutError` for a function that the source does not have.
    """
    lines, tree, edits = source.splitlines(), parsed(source), []
    for name in names:
        node = _function(tree, name)
        first = _start(node)
        while first > 1 and re.match(r"\s*(#|$)", lines[first - 2]):
            first -= 1  # blank lines go, too
        edits.append((first, node.end_lineno or first, list[str]()))
    return _replaced(lines, edits)


def open_holes(text: str, names: Iterable[str]) -> list[str]:
    """Those of the named functions and classes in which a TODO is still raised.

    Missing ones raise `CutError`.
    """
    tree = parsed(text)
    return [name for name in names if _raises_todo(_definition(tree, name))]


def splice(source: str, fragment: str, *, known: bool = False) -> str:
    """The source with the definitions of the fragment in place of its own. `known`: raises CutError
    if the source has none of them."""
    lines, tree = source.splitlines(), parsed(source)
    new_lines, new = fragment.splitlines(), parsed(fragment)
    edits: list[tuple[int, int, Lines]] = []
    imports: Lines = []
    added: Lines = []
    for node in new.body:
        text = lines_of(node, new_lines)
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports += [] if _is_future(node) else text
        elif isinstance(node, ast.ClassDef) and (old := find(tree, node.name)) is not None:
            edits += _members(old, node, new_lines)
        elif (old := find(tree, name_of(node))) is not None:
            edits.append((_start(old), old.end_lineno or 0, text))
        elif not _is_docstring(node):
            added += ["", "", *text]
    if known and not edits:
        raise CutError("replaces nothing: none of its names stands in the source")
    if imports:
        after = max((n.end_lineno or 0 for n in tree.body if _is_import(n)), default=0)
        edits.append((after + 1, after, imports))
    return _replaced([*lines, *added], edits)


def changed(source: str, mine: str) -> str:
    """A fragment with every definition of `mine` that differs from the source's."""
    tree, other, lines = parsed(source), parsed(mine), mine.splitlines()
    known = {ast.dump(node) for node in tree.body}
    out: Lines = []
    for node in other.body:
        if ast.dump(node) in known or _is_docstring(node):
            continue
        old = find(tree, name_of(node))
        if not (isinstance(node, ast.ClassDef) and isinstance(old, ast.ClassDef)):
            out += lines_of(node, lines)
            continue
        same = {ast.dump(member) for member in old.body}
        new = [m for m in node.body if ast.dump(m) not in same and not _is_docstring(m)]
        if new:  # a class that only lacks something changes nothing
            out.append(f"class {node.name}:")
        for member in new:
            out += lines_of(member, lines)
    return "\n".join(out) + "\n"


def definition_of(source: str, name: str) -> str:
    """The text of one function, method or class, as it stands."""
    return "\n".join(lines_of(_definition(parsed(source), name), source.splitlines()))


def body_of(source: str, name: str) -> Lines:
    """The lines of a function below its signature and docstring."""
    lines, node = source.splitlines(), functions(source)[name]
    code = _code(node)
    if code and lines[code[0].lineno - 1][: code[0].col_offset].strip():  # `def f(x): return x`
        return [line for statement in code for line in ast.unparse(statement).splitlines()]
    return lines[_body_begins(node, lines) - 1 : node.end_lineno] if code else []


def is_unwritten(source: str, name: str) -> bool:
    """Does a function only raise its TODO, without so much as a comment of the learner's?"""
    code = _code(functions(source)[name])
    if any(line.lstrip().startswith("#") for line in body_of(source, name)):
        return False
    return not code or (len(code) == 1 and isinstance(code[0], ast.Raise) and _raises_todo(code[0]))


def functions(source: str) -> dict[str, ast.FunctionDef]:
    """Every function and method by its full name. As in Python, the last definition counts."""
    found: dict[str, ast.FunctionDef] = {}
    for node in parsed(source).body:
        members = node.body if isinstance(node, ast.ClassDef) else [node]
        owner = f"{node.name}." if isinstance(node, ast.ClassDef) else ""
        found |= {owner + m.name: m for m in members if isinstance(m, ast.FunctionDef)}
    return found


def lines_of(node: ast.stmt, lines: Lines) -> Lines:
    """The lines of a statement, decorators included."""
    return lines[_start(node) - 1 : node.end_lineno]


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


def _raises_todo(node: ast.AST) -> bool:
    """Is a TODO raised anywhere in it? Half a solution is still a hole."""
    raised = [ast.dump(n) for n in ast.walk(node) if isinstance(n, ast.Raise)]
    return any("NotImplementedError" in text and "TODO(" in text for text in raised)


def _code(node: ast.FunctionDef) -> list[ast.stmt]:
    """The statements of a function without its docstring."""
    return node.body[1:] if _is_docstring(node.body[0]) else node.body


def _indented(body: Lines, width: int) -> Lines:
    """A body moved to another indentation; lines that stand further left are part of a string."""
    code = [line for line in body if line.strip() and not line.lstrip().startswith("#")]
    old = code[0][: len(code[0]) - len(code[0].lstrip())] if code else ""
    return [
        " " * width + line[len(old) :] if line.strip() and line.startswith(old) else line
        for line in body
    ]


def _members(old: ast.stmt, new: ast.ClassDef, lines: Lines) -> list[tuple[int, int, Lines]]:
    """Edits that replace the members of `old` by those of `new`, or add them at its end."""
    if not isinstance(old, ast.ClassDef):
        raise CutError(f"{new.name} is not a class in the source")
    edits = []
    for member in new.body:
        if _is_docstring(member) or isinstance(member, ast.Pass):
            continue
        text = lines_of(member, lines)
        there = find(old, name_of(member))
        if there is not None:
            edits.append((_start(there), there.end_lineno or 0, text))
        else:
            end = old.end_lineno or 0
            edits.append((end + 1, end, ["", *text]))
    return edits


def _replaced(lines: Lines, edits: list[tuple[int, int, Lines]]) -> str:
    """Replace lines first to last, counted from 1 and inclusive; last = first - 1 inserts."""
    out = list(lines)
    for first, last, text in sorted(edits, key=lambda edit: edit[:2])[::-1]:
        out[first - 1 : last] = text
    return "\n".join(out) + "\n"


def _definition(tree: ast.Module, name: str) -> ast.FunctionDef | ast.ClassDef:
    node: ast.AST | None = tree
    for part in name.split("."):
        node = find(node, part) if node is not None else None
    if not isinstance(node, ast.FunctionDef | ast.ClassDef):
        raise CutError(f"there is no function {name}")
    return node


def _function(tree: ast.Module, name: str) -> ast.FunctionDef:
    node = _definition(tree, name)
    if not isinstance(node, ast.FunctionDef):
        raise CutError(f"there is no function {name}: it is a class")
    return node


def find(parent: ast.AST, name: str | None) -> ast.stmt | None:
    children = getattr(parent, "body", [])
    return next((c for c in children if name is not None and name_of(c) == name), None)


def name_of(node: ast.AST) -> str | None:
    """The name that a definition or an assignment defines."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    return target.id if isinstance(target, ast.Name) else None


def _start(node: ast.stmt) -> int:
    """The first line, decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _body_begins(node: ast.FunctionDef, lines: Lines) -> int:
    """The line after the docstring, or after the signature if there is none."""
    if _is_docstring(node.body[0]):
        return (node.body[0].end_lineno or 0) + 1
    first = _start(node.body[0])
    while first - 1 > node.lineno and lines[first - 2].strip().startswith("#"):
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
