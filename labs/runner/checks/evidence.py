"""What a failing test saw, and whether two runs fail in the same way.

In:  the exception of a failing test. Out: a dictionary for the event that ends it (session.py):

    error, message    the exception's type and text; of an `assert` pytest's own explanation
    asserted, at      the statement of the test that failed, and its line
    where, line       the learner's last line if the learner's code raised, else the test's
    mine, refused     was it raised in the learner's file? on purpose, by the engine or the lab?
    within            the learner's function that raised it: "GraphRunner.run_at"
    todo              the open hole that was met
    inputs            "kernels=257, spec=h200": what the test held there
    state             the same in more detail: two answers with one mistake agree on it

Nothing here imports numpy or torch: their arrays are known by their methods.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import traceback
import types
from collections.abc import Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

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
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    unwritten = [e for e in chain if isinstance(e, NotImplementedError)]
    todo = next((m for m in (TODO.search(str(e)) for e in (*unwritten, *chain)) if m), None)
    steps = [step for e in chain for step in traceback.walk_tb(e.__traceback__)]
    mine = [step for step in steps if any(same(step[0].f_code.co_filename, f) for f in files)]
    tests = [step for step in steps if same(step[0].f_code.co_filename, test_file)]
    # A helper that compares for several tests is called `assert_…`; its own lines say nothing about
    # the case, so the line that calls it is taken.
    own = [step for step in tests if not step[0].f_code.co_name.startswith("assert_")] or tests
    frame, number = (mine or own or steps)[-1]
    inner = error
    while inner.__cause__ is not None and type(inner).__module__.startswith(WRAPS):
        inner = inner.__cause__
    lines = [line.rstrip() for line in str(inner).splitlines() if line.strip()]
    lines = [line for line in lines if "Use -v to get" not in line]
    path = frame.f_code.co_filename
    found: dict[str, Any] = {
        "todo": todo[0].removesuffix("')") if todo else "",  # Dynamo quotes the error that it met
        "error": type(inner).__name__,
        "message": "\n".join(_cut(line) for line in lines[:MOST_LINES]),
        "where": f"{path}:{number}",
        "line": linecache.getline(path, number).strip(),
        "mine": bool(mine),
        "within": frame.f_code.co_qualname.partition(".<locals>")[0] if mine else "",
        "refused": _refused(inner, files),
    }
    if own and not todo and own[-1][0].f_code.co_name != "<module>":
        frame, number = own[-1]
        found["asserted"] = _statement(frame.f_code.co_filename, number)
        found |= {"at": number, "inputs": held(frame)}
        found["state"] = {
            f"{depth}.{name}": text
            for depth, (frame, _) in enumerate(tests)
            for name, value in frame.f_locals.items()
            if not name.startswith("@") and not _is_nameless(text := fingerprint(value))
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
        and _rounded(wanted.get("message", "")) == _rounded(found.get("message", ""))
        and one.keys() == other.keys()
        and all(_rounded(text) == _rounded(other[name]) for name, text in one.items())
    )


def same(one: str, other: str) -> bool:
    """Are these two paths the same file?"""
    return os.path.realpath(one) == os.path.realpath(other)


def held(frame: types.FrameType, without: Iterable[str] = ()) -> str:
    """`a=1, b=float32[3] 1 2 3`: the values of the locals of a frame, less some by name, functions,
    modules, nameless objects and pytest's own. A long record is told by its type and name."""
    shown = [
        f"{name}={text}"
        for name, value in frame.f_locals.items()
        if not (name.startswith(("@", "__")) or name in without or value is None)
        and (is_array(value) or not callable(value))
        and not _is_nameless(text := _brief(value))
    ]
    return ", ".join(shown[:MOST_INPUTS])


# ---------------------------------------------------------------- the failing statement


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


def _statement(path: str, number: int) -> str:
    """The statement of a file that stands on this line, in one line."""
    lines = linecache.getlines(path)
    around = [n for n in ast.walk(ast.parse("".join(lines))) if isinstance(n, ast.stmt)
              and n.lineno <= number <= (n.end_lineno or n.lineno)]  # fmt: skip
    around.sort(key=lambda node: node.lineno)
    statement = around[-1]
    if len(around) > 1 and isinstance(block := around[-2], ast.With) and len(block.body) == 1:
        statement = block  # `with pytest.raises(…)` is half of what is asserted
    return _cut(" ".join(s.strip() for s in lines[statement.lineno - 1 : statement.end_lineno]))


# ---------------------------------------------------------------- values as text

WIDE = 100  # characters of one value
NARROW = 60  # of a record that is shown with all of its fields
FEW, MANY = 6, 48  # elements of an array that are shown, and that are compared
ADDRESS = re.compile(r"0x[0-9a-fA-F]+")
DECIMAL = re.compile(r"(?<![\w.])-?\d+(?:\.\d*(?:[eE][-+]?\d+)?|[eE][-+]?\d+)(?!\w)")  # no count


def short(value: object) -> str:
    """The value in one line: an array as type, shape and first values, others as pytest does."""
    if is_array(value):
        flat, kind = _flat(value), str(getattr(value, "dtype", "")).removeprefix("torch.")
        first = " ".join(f"{x:.6g}" if isinstance(x, float) else str(x) for x in flat[:FEW])
        more = " …" if len(flat) > FEW else ""
        return f"{kind}{list(getattr(value, 'shape', ()))} {first}{more}".rstrip()
    from _pytest._io.saferepr import saferepr

    text = " ".join(saferepr(value, maxsize=WIDE).split())
    return f"a {type(value).__name__}" if ADDRESS.search(text) else text


def _brief(value: Any) -> str:
    """As `short`; of a record with many fields its type and `name`, of a list of them how many."""
    text, several = short(value), type(value) in (list, tuple) and bool(value)
    record = value[0] if several else value
    is_record = is_dataclass(record) or hasattr(record, "_fields")
    if not is_record or len(text) < NARROW:
        return text
    kind = type(record).__name__
    return f"{len(value)} x {kind}" if several else f"a {kind} {getattr(value, 'name', '')}".strip()


def fingerprint(value: object) -> str:
    """Longer than `short`: what tells values of two runs apart, but no list from an array."""
    if is_array(value):
        flat = _flat(value)
        shape = list(getattr(value, "shape", ()))
        first = fingerprint(flat[:: max(1, len(flat) // MANY)])
        return first if shape == [len(flat)] and len(flat) <= MANY else f"{shape} {first}"
    if isinstance(value, Mapping):
        value = [part for pair in value.items() for part in pair]
    if isinstance(value, list | tuple):
        return f"{len(value)}: " + "; ".join(fingerprint(part) for part in value[: 2 * MANY])
    return short(value)


def is_array(value: object) -> bool:
    """Is it an array or a tensor, with numbers that can be read?"""
    names = ("shape", "dtype", "tolist", "reshape")
    return not isinstance(value, type) and all(hasattr(value, name) for name in names)


def _flat(value: Any) -> list[Any]:
    """The elements, one after the other, as Python's own numbers."""
    if hasattr(value, "detach"):
        value = value.detach().cpu()
    flat = value.reshape(-1).tolist()
    return flat if isinstance(flat, list) else [flat]


def _is_nameless(text: str) -> bool:
    """Does it only say what type an object has, or as `<…>` what two runs need not share?"""
    return text.startswith("<") or re.fullmatch(r"a \w+", text) is not None


def _rounded(text: str) -> str:
    """The text with decimals to four digits and without addresses and folders."""
    text = re.sub(r"(/[\w.\-]+)+/", "/", ADDRESS.sub("0x", text))
    return DECIMAL.sub(lambda found: f"{round(float(found[0]), 7):.4g}", text)
