"""What a failing test saw: its inputs, what it expected and what it got, each in a line.

In:  the exception of a failing test. Out: a dictionary for the event that ends it (session.py):

    error, message      the type, and what was said, condensed
    asserted, at        the statement of the test that failed, and its line
    where, line         the learner's last line if the learner's code raised, else the test's
    inputs              "kernels=257, kernel_us=4.2, spec=h200": the values that `asserted` names
    expected, got       of a comparison; of arrays, where they differ first
    state               what the test held when it failed: two answers with one mistake agree on it
"""

from __future__ import annotations

import ast
import linecache
import os
import traceback
import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

from labs.runner.checks.difference import Compared, difference, sides_of
from labs.runner.checks.values import alike, fingerprint, is_array, plain, short
from labs.runner.cut.catalogue import ROOT
from labs.runner.cut.cutter import TODO

WRAPS = ("triton", "torch._dynamo", "torch._inductor")  # their errors stand around another one
MOST_INPUTS = 8
LONGEST_LINE = 300  # of a message: a compiler puts what does not fit at the end of its line
ANY: dict[str, Any] = {}  # outcomes to compare with: whatever it is
PASSED = {"outcome": "passed"}


def explained(
    error: BaseException, files: list[str], test_file: str, compared: Compared | None = None
) -> dict[str, Any]:
    """An error as a dictionary of the fields above. `files` are the learner's.

    Follows errors back to those they were raised from, because Triton's interpreter wraps them.
    """
    chain = _chain(error)
    unwritten = [e for e in chain if isinstance(e, NotImplementedError)]
    todo = next((m for m in (TODO.search(str(e)) for e in (*unwritten, *chain)) if m), None)
    frames = [step for e in chain for step in traceback.walk_tb(e.__traceback__)]
    mine = [step for step in frames if any(same(step[0].f_code.co_filename, f) for f in files)]
    tests = [step for step in frames if same(step[0].f_code.co_filename, test_file)]
    asked = _asked(tests)
    frame, number = mine[-1] if mine else (asked or frames[-1])
    inner = error
    while inner.__cause__ is not None and type(inner).__module__.startswith(WRAPS):
        inner = inner.__cause__
    path = frame.f_code.co_filename
    found: dict[str, Any] = {
        "todo": todo[0].removesuffix("')") if todo else "",  # Dynamo quotes the error that it met
        "error": type(inner).__name__,
        "message": _message(inner),
        "where": f"{path}:{number}",
        "line": linecache.getline(path, number).strip(),
        "mine": bool(mine),
        "refused": _refused(inner, files),
    }
    if asked and not todo:
        sides = sides_of(error, frames, compared)
        found |= _asserted(asked, sides)
        found["state"] = _state([frame for frame, _ in tests])
        if sides is not None:
            found["state"]["got"] = fingerprint(sides.left)
    return found


def same_outcome(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Does a test come out of two runs in the same way? Of a failure its values decide: the line,
    what was said, and all that the test held when it failed."""
    if wanted.get("outcome", found["outcome"]) != found["outcome"]:
        return False
    if wanted.get("outcome") != "failed":
        return True
    one, other = wanted.get("state") or {}, found.get("state") or {}
    return (
        (wanted.get("error"), wanted.get("at")) == (found.get("error"), found.get("at"))
        and alike(wanted.get("message", ""), found.get("message", ""))
        and one.keys() == other.keys()
        and all(alike(text, other[name]) for name, text in one.items())
    )


def same(one: str, other: str) -> bool:
    """Are these two paths the same file?"""
    return os.path.realpath(one) == os.path.realpath(other)


def held(frame: types.FrameType, names: list[str]) -> str:
    """`a=1, b=float32[3] 1.0 2.0 3.0`: the values of these names where a frame stands."""
    known = frame.f_globals | frame.f_locals
    shown = [f"{name}={short(known[name])}" for name in names if name in known]
    return ", ".join(shown[:MOST_INPUTS])


# ---------------------------------------------------------------- parts


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _asked(tests: list[tuple[types.FrameType, int]]) -> tuple[types.FrameType, int] | None:
    """The line of the test that failed. What compares for several tests is called `assert_…`, and
    its own lines say nothing about the case: then it is the line that calls it."""
    own = [step for step in tests if not _compares(step[0])] or tests
    return own[-1] if own else None


def _compares(frame: types.FrameType) -> bool:
    return frame.f_code.co_name.startswith("assert_") or "__tracebackhide__" in frame.f_locals


def _message(error: BaseException) -> str:
    """What was said, without pytest's drawing of the assertion below it."""
    kept = []
    for line in str(error).strip().splitlines():
        if isinstance(error, AssertionError) and line.startswith("assert "):
            break
        if line.strip() and not line.lstrip().startswith("+ "):
            text = line.rstrip()
            kept.append(text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 2]} …")
    return "\n".join(kept[:6])


def _refused(error: BaseException, files: list[str]) -> bool:
    """Did the engine or the lab raise it on purpose, rather than Python at a slip?"""
    steps = traceback.extract_tb(error.__traceback__)
    last = steps[-1] if steps else None
    return (
        last is not None
        and last.filename.startswith(f"{ROOT}{os.sep}")
        and not any(same(last.filename, file) for file in files)
        and (last.line or "").startswith("raise ")
    )


def _asserted(step: tuple[types.FrameType, int], sides: Compared | None) -> dict[str, Any]:
    """The statement of the test that failed, its inputs, and what it expected and got."""
    frame, number = step
    path = frame.f_code.co_filename
    tree = _around(_parsed(path), number)
    statement = _statement(tree, number)
    found: dict[str, Any] = {"at": number}
    if statement is None:
        return found
    if isinstance(statement, ast.With) and _raises(statement):
        statement = statement.body[-1]  # nothing was refused: what was to be stands in the block
    found["asserted"] = _headline(statement, path)
    names = _names(statement)
    for name in list(names):
        if made := _made(tree, frame.f_code, name, statement.lineno):
            names += [other for other in _names(made) if other not in names]
    known = frame.f_globals | frame.f_locals
    shown = {short(sides.left), short(sides.right)} if sides else set()
    told = [n for n in names if n in known and short(known[n]) not in shown
            and (_is_number(known[n]) if n.isupper() else _is_input(known[n]))]  # fmt: skip
    found["inputs"] = held(frame, told)
    if sides is not None:
        found |= difference(sides)
    elif wanted := _refusal(tree, number, known):
        found["expected"] = wanted
    return found


def _refusal(tree: ast.AST, number: int, known: Mapping[str, Any]) -> str:
    """The error that a test waits for on this line, if it does."""
    blocks = [node for node in ast.walk(tree) if isinstance(node, ast.With)]
    around = [node for node in blocks if node.lineno <= number <= (node.end_lineno or 0)]
    errors = [ast.unparse(error) for error in map(_raises, around) if error]
    if not errors:
        return ""
    error = known.get(errors[0])  # a test may go through several
    return f"a refusal: {error.__name__ if isinstance(error, type) else errors[0]}"


def _raises(block: ast.With) -> ast.expr | None:
    """The error that a block of a test waits for, if it waits for one."""
    call = block.items[0].context_expr
    if isinstance(call, ast.Call) and ast.unparse(call.func) == "pytest.raises":
        return call.args[0]
    return None


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(path)))


def _around(tree: ast.Module, number: int) -> ast.AST:
    """The statement of the module that this line is in: a function, for a test."""
    inside = [n for n in tree.body if n.lineno <= number <= (n.end_lineno or n.lineno)]
    return inside[0] if inside else tree


def _statement(tree: ast.AST, number: int) -> ast.stmt | None:
    """The innermost statement on this line."""
    inside = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= number <= (node.end_lineno or node.lineno)
    ]
    return max(inside, key=lambda node: node.lineno, default=None)


def _headline(statement: ast.stmt, path: str) -> str:
    """The text of a statement on one line; of a block only its first line."""
    last = statement.end_lineno or statement.lineno
    if isinstance(body := getattr(statement, "body", None), list):
        last = max(statement.lineno, body[0].lineno - 1)
    lines = [linecache.getline(path, n).strip() for n in range(statement.lineno, last + 1)]
    text = " ".join(lines)
    return text if len(text) <= 300 else f"{text[:298]} …"


def _names(node: ast.AST) -> list[str]:
    """Names that are read, in the order in which they stand."""
    if isinstance(body := getattr(node, "body", None), list):
        parts = [n for n in ast.iter_child_nodes(node) if n not in body]
    else:
        parts = [node]
    found = [n for part in parts for n in ast.walk(part)
             if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load)]  # fmt: skip
    found.sort(key=lambda n: (n.lineno, n.col_offset))
    return list(dict.fromkeys(n.id for n in found))


def _made(tree: ast.AST, code: types.CodeType, name: str, before: int) -> ast.expr | None:
    """The call that gave a local name its value, if one did, above this line of its function."""
    found = None
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and code.co_firstlineno < node.lineno < before:
            bound = {n.id for target in node.targets for n in ast.walk(target)
                     if isinstance(n, ast.Name)}  # fmt: skip
            if name in bound and (found is None or node.lineno > found.lineno):
                found = node
    return found.value if found is not None and isinstance(found.value, ast.Call) else None


def _is_input(value: object) -> bool:
    """A value, and not a function, a class, a module, or what can only be called by its type."""
    if callable(value) or isinstance(value, types.ModuleType):
        return is_array(value)
    return short(value) != f"a {type(value).__name__}"


def _is_number(value: object) -> bool:
    """Of constants only numbers and records say something about a case. A dtype does not, nor a
    table of cases, for the name of the case stands beside it."""
    return plain(value) and not isinstance(value, Mapping)


def _state(frames: list[types.FrameType]) -> dict[str, str]:
    return {f"{depth}.{name}": text for depth, frame in enumerate(frames)
            for name, text in _plain_values(frame)}  # fmt: skip


def _plain_values(frame: types.FrameType) -> Iterator[tuple[str, str]]:
    for name, value in frame.f_locals.items():
        if plain(value) and not name.startswith("@"):
            yield name, fingerprint(value)
