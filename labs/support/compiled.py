"""Compiles a learner's kernels for an H200 (sm_90), with dependent launch. No GPU is needed.

In:  where a kernel stands, its constants and warps. Out: nothing, or an error that is raised, so to
speak, on the line of the learner's file that the compiler does not take.

The interpreter takes more than the compiler does, and a process has it on for all kernels or for
none. So a fork of the process forgets Triton and the kernels, imports them again without the
interpreter (a tenth of a second), compiles, and sends back what went wrong. Triton keeps what it
has compiled, by source: what has not changed costs nothing.
"""

from __future__ import annotations

import ast
import multiprocessing
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NoReturn

SHARED_BYTES = 227 * 1024  # that a program of sm_90 may have
FORGOTTEN = ("triton", "mini_engine.cuda", "tests.support")
KEPT = "triton._C"  # compiled code, which cannot be loaded twice
DIAGNOSTIC = re.compile(r"^(\S+?):(\d+):\d+: error: (.+)$", re.MULTILINE)


class NotCompiled(Exception):
    """The compiler refuses what the interpreter takes."""


@dataclass(frozen=True)
class Kernel:
    """A kernel to compile. Arguments are of the types that a step of a real model gives them, by
    their names (tests/support/kernel_cases.py), unless `pointers` says otherwise. Constants are
    pairs, None for a tensor that is absent."""

    module: str
    name: str
    constants: tuple[tuple[str, Any], ...]
    warps: int = 4
    pointers: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Refusal:
    """Why a kernel does not compile, and on which line of which file; todo: it is not written."""

    said: str
    file: str
    line: int
    todo: bool = False


def must_compile(kernel: Kernel, among: tuple[Kernel, ...] = ()) -> None:
    """Raises `NotCompiled`, or the TODO that is still there as NotImplementedError. All of `among`
    are compiled together, once, since a child process for each would take longer."""
    refusal = _refused(among or (kernel,)).get(kernel)
    if refusal:
        kind = NotImplementedError if refusal.todo else NotCompiled
        what = "" if refusal.todo else f"{kernel.name} does not compile for sm_90: "
        raise_at(refusal.file, refusal.line, kind(what + refusal.said))


def raise_at(file: str, line: int, error: Exception) -> NoReturn:
    """Raise an error whose traceback ends on that line of that file."""
    code = compile("\n" * (line - 1) + "raise error", file, "exec")
    exec(code, {"error": error})
    raise AssertionError("not reached")


@cache
def _refused(kernels: tuple[Kernel, ...]) -> dict[Kernel, Refusal]:
    """Those of the kernels that do not compile; a child of this process has tried."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=_compile_in_child, args=(sender, kernels))
    child.start()
    sender.close()
    try:
        refused: dict[Kernel, Refusal] = receiver.recv()
    except EOFError:
        child.join()
        raise NotCompiled(f"the compiler ended with code {child.exitcode}") from None
    finally:
        child.join()
    return refused


# ---------------------------------------------------------------- in the child


def _compile_in_child(sender: Connection, kernels: tuple[Kernel, ...]) -> None:
    os.environ.pop("TRITON_INTERPRET", None)
    for name in list(sys.modules):
        if _is_in(name, FORGOTTEN) and not _is_in(name, (KEPT,)):
            del sys.modules[name]
    refused = {}
    for kernel in kernels:
        with tempfile.TemporaryFile() as said:
            os.dup2(said.fileno(), 2)  # MLIR and ptxas write their reasons here
            try:
                _compile(kernel)
            except Exception as error:
                said.seek(0)
                printed = said.read().decode(errors="replace")
                refused[kernel] = _refusal(error, kernel, printed)
    sender.send(refused)
    sender.close()


def _is_in(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(f"{package}.") for package in packages)


def _compile(kernel: Kernel) -> None:
    import importlib

    function = getattr(importlib.import_module(kernel.module), kernel.name)
    cases = importlib.import_module("tests.support.kernel_cases")
    made = cases.build_for(
        function,
        cases.POINTERS | dict(kernel.pointers),
        dict(kernel.constants) | {"PDL": True},
        capability=90,
        num_warps=kernel.warps,
        scalars=cases.SCALARS,
    )
    shared = made.metadata.shared
    if shared > SHARED_BYTES:
        raise ValueError(
            f"a program needs {shared} bytes of shared memory, there are {SHARED_BYTES}"
        )


def _refusal(error: BaseException, kernel: Kernel, printed: str) -> Refusal:
    """The innermost reason, at the innermost line that is not Triton's own.

    Triton raises a CompilationError for the line of each call on the way down to the mistake, every
    one from the next. The reason is that of the last; those before it say where it was called.
    """
    functions = dict(_functions())
    chain = list(_causes(error))
    places: list[Any] = [e for e in chain if getattr(getattr(e, "node", None), "lineno", 0)]
    mine = [(e, *functions[e.src]) for e in places if e.src in functions]
    if mine:
        last, file, first = mine[-1]
        line = first + last.node.lineno - 1
        if todo := _todo(last.node):
            return Refusal(todo, file, line, todo=True)
        reasons = [str(getattr(e, "error_message", e) or "") for e in chain]
        said = next(reason for reason in [*reasons[::-1], type(chain[-1]).__name__] if reason)
        return Refusal(_unquoted(said), file, line)
    file, line = _where(kernel, functions)
    if told := DIAGNOSTIC.findall(printed):  # of the passes after the front end
        ours = [t for t in told if any(t[0] == file for file, _ in functions.values())] or told
        return Refusal(ours[-1][2], ours[-1][0], int(ours[-1][1]))
    return Refusal(f"{type(error).__name__}: {str(error).strip()}", file, line)


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error, the one that it was raised from, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def _functions() -> Iterator[tuple[str, tuple[str, int]]]:
    """The text of every kernel and helper outside Triton -> its file and the line of its `def`."""
    from triton.runtime.jit import JITFunction, get_jit_fn_file_line

    for name, module in list(sys.modules.items()):
        if not _is_in(name, ("triton", "torch")):
            for value in list(vars(module).values()):
                if isinstance(value, JITFunction) and not _is_in(value.__module__, ("triton",)):
                    yield value.src, get_jit_fn_file_line(value)


def _where(kernel: Kernel, functions: dict[str, tuple[str, int]]) -> tuple[str, int]:
    """The file and line of a kernel itself, if it could be imported."""
    module = sys.modules.get(kernel.module)
    function = getattr(module, kernel.name, None)
    found = functions.get(getattr(function, "src", ""))
    return found or (str(getattr(module, "__file__", None) or Path(__file__)), 1)


def _todo(node: ast.AST) -> str:
    """What a `raise NotImplementedError("TODO…")` says."""
    call = getattr(node, "exc", None) if isinstance(node, ast.Raise) else None
    said = call.args[0] if isinstance(call, ast.Call) and call.args else None
    value = getattr(said, "value", "")
    return value if isinstance(value, str) and value.startswith("TODO(") else ""


def _unquoted(said: str) -> str:
    """`NameError('x is not defined')` as Triton wraps it, without the quotes."""
    found = re.fullmatch(r"(\w+)\(([\"'])(.*)\2\)", said.strip(), re.DOTALL)
    return f"{found[1]}: {found[3]}" if found else said.strip()
