"""What a failing test saw, and whether two runs fail in the same way.

In:  the exception of a failing test. Out: a dictionary for the event that ends it (session.py):

    error, message    the exception's type and text; of an `assert` pytest's own explanation
    asserted, at      the statement of the test that failed, and its line
    where, line       the learner's last line if the learner's code raised, else the test's
    mine, refused     was it raised in the learner's file? on purpose, by the engine or the lab?
    todo              the open hole that was met
    inputs            "kernels=257, spec=h200": the values that `asserted` names
    state             what the test held when it failed: two answers with one mistake agree on it

Nothing here imports numpy or torch: their arrays are known by their methods.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import linecache
import os
import re
import traceback
import types
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

from _pytest._io.saferepr import saferepr

from labs.runner.cut.catalogue import ROOT
from labs.runner.cut.cutter import TODO

WRAPS = ("triton", "torch._dynamo", "torch._inductor")  # their errors stand around another one
MOST_INPUTS = 8
MOST_LINES = 10  # of a message
LONGEST_LINE = 300
ANY: dict[str, Any] = {}  # outcomes to compare with: whatever it is
PASSED = {"outcome": "passed"}
Step = tuple[types.FrameType, int]  # of a traceback: the frame and its line


def explained(error: BaseException, files: list[str], test_file: str) -> dict[str, Any]:
    """An error as a dictionary of the fields above. `files` are the learner's.

    Follows errors back to those they were raised from, because Triton's interpreter wraps them.
    """
    chain = _chain(error)
    unwritten = [e for e in chain if isinstance(e, NotImplementedError)]
    todo = next((m for m in (TODO.search(str(e)) for e in (*unwritten, *chain)) if m), None)
    steps = [step for e in chain for step in traceback.walk_tb(e.__traceback__)]
    mine = [step for step in steps if any(same(step[0].f_code.co_filename, f) for f in files)]
    tests = [step for step in steps if same(step[0].f_code.co_filename, test_file)]
    asked = _asked(tests)
    frame, number = mine[-1] if mine else (asked or steps[-1])
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
    if asked and not todo and asked[0].f_code.co_name != "<module>":
        found |= _asserted(asked)
        found["state"] = {
            f"{depth}.{name}": fingerprint(value)
            for depth, (frame, _) in enumerate(tests)
            for name, value in frame.f_locals.items()
            if plain(value) and not name.startswith("@")
        }
    return found


def same_outcome(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Does a test come out of two runs in the same way? Two failures are the same if the line, the
    message, and all values that the test held are."""
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


def held(frame: types.FrameType, names: Iterable[str] | None = None) -> str:
    """`a=1, b=float32[3] 1 2 3`: the values of these names where a frame stands, or of its locals.

    Functions, modules, nameless objects and pytest's own names are left out.
    """
    known = frame.f_globals | frame.f_locals
    names = frame.f_locals if names is None else names
    shown = [n for n in names if n in known and not n.startswith("@") and _is_value(known[n])]
    return ", ".join(f"{name}={short(known[name])}" for name in shown[:MOST_INPUTS])


def _is_value(value: object) -> bool:
    if value is None or isinstance(value, types.ModuleType):
        return False
    return is_array(value) or not (callable(value) or short(value) == f"a {type(value).__name__}")


# ---------------------------------------------------------------- the failing statement


def _chain(error: BaseException) -> list[BaseException]:
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    return chain


def _asked(tests: list[Step]) -> Step | None:
    """The line of the test that failed. A helper that compares for several tests is called
    `assert_…`; its own lines say nothing about the case, so the line that calls it is taken."""
    own = [step for step in tests if not step[0].f_code.co_name.startswith("assert_")] or tests
    return own[-1] if own else None


def _message(error: BaseException) -> str:
    lines = [line.rstrip() for line in str(error).splitlines() if line.strip()]
    kept = [line for line in lines if "Use -v to get" not in line]
    return "\n".join(_cut(line) for line in kept[:MOST_LINES])


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_LINE else f"{text[: LONGEST_LINE - 2]} …"


def _refused(error: BaseException, files: list[str]) -> bool:
    """Did the engine or the lab raise it on purpose, rather than Python at a slip?"""
    last = (traceback.extract_tb(error.__traceback__) or [None])[-1]
    return (
        last is not None
        and last.filename.startswith(f"{ROOT}{os.sep}")
        and not any(same(last.filename, file) for file in files)
        and (last.line or "").startswith("raise ")
    )


def _asserted(step: Step) -> dict[str, Any]:
    """The statement of the test that failed, and what the test held there."""
    frame, number = step
    path = frame.f_code.co_filename
    around = [n for n in ast.walk(_parsed(path)) if isinstance(n, ast.stmt)
              and n.lineno <= number <= (n.end_lineno or n.lineno)]  # fmt: skip
    around.sort(key=lambda node: node.lineno)
    statement = around[-1]
    if len(around) > 1 and isinstance(block := around[-2], ast.With) and len(block.body) == 1:
        statement = block  # `with pytest.raises(…)` is half of what is asserted
    lines = linecache.getlines(path)[statement.lineno - 1 : statement.end_lineno]
    return {
        "at": number,
        "asserted": _cut(" ".join(line.strip() for line in lines)),
        "inputs": held(frame),
    }


@cache
def _parsed(path: str) -> ast.Module:
    return ast.parse("".join(linecache.getlines(path)))


# ---------------------------------------------------------------- values as text

WIDE = 100  # characters of one value
FEW = 6  # elements of an array
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DECIMAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+)(?!\w)")  # no count


def short(value: object) -> str:
    """The value in one line: an array as type, shape and first values, others as pytest does."""
    if is_array(value):
        flat, kind = _flat(value), str(getattr(value, "dtype", "")).removeprefix("torch.")
        first = " ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in flat[:FEW])
        return f"{kind}{_shape(value)} {first}{' …' if len(flat) > FEW else ''}".rstrip()
    text = " ".join(saferepr(value, maxsize=WIDE).split())
    return f"a {type(value).__name__}" if ADDRESS.search(text) else text


def is_array(value: object) -> bool:
    """Is it an array or a tensor, with numbers that can be read?"""
    names = ("shape", "dtype", "tolist", "reshape")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _shape(value: Any) -> list[int]:
    return list(value.shape)


def _flat(value: Any) -> list[Any]:
    """The elements, one after the other, as Python's own numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    flat = value.reshape(-1).tolist()
    return flat if isinstance(flat, list) else [flat]


def plain(value: object) -> bool:
    """Can two runs be compared by it: is it a number, a text, an array, a list of them?"""
    if value is None or isinstance(value, str | bool | int | float | enum.Enum):
        return True
    if is_array(value) or dataclasses.is_dataclass(value):
        return True
    if isinstance(value, Mapping):
        return all(plain(part) for pair in list(value.items())[:FEW] for part in pair)
    if isinstance(value, list | tuple | set | frozenset):
        return all(plain(part) for part in list(value)[:FEW])
    return False


def fingerprint(value: object) -> str:
    """Longer than `short`: what tells the values of two runs apart, 48 parts of it."""
    if is_array(value):
        flat = _flat(value)
        return f"{_shape(value)} {fingerprint(flat[:: max(1, len(flat) // 48)])}"
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return f"{len(value)}: " + "; ".join(fingerprint(part) for part in value[:96])
    return short(value)


def alike(one: str, other: str) -> bool:
    """Do two texts say the same, decimals to four digits, addresses and folders apart?"""
    return _rounded(one) == _rounded(other)


def _rounded(text: str) -> str:
    text = re.sub(r"(/[\w.\-]+)+/", "/", ADDRESS.sub("0x", text))
    return DECIMAL.sub(lambda found: f"{round(float(found[0]), 7):.4g}", text)
