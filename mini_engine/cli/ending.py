"""How a program ends: one handler around everything it does, imports included.

    sys.exit(guarded("mini_engine", main))      # `main` imports what it needs, and returns a code

Whatever is raised becomes an exit code and one line on standard error, never a traceback and never
a blank line:

    0    done, also when the reader of a pipe has seen enough
    1    a check failed, or the program itself is at fault
    2    bad input, or not enough memory or room on the disk
    130  Ctrl-C

With `as_json` it is one object, whose version is that of all other JSON (`json_schema`):

    {"schema_version": 1, "error": {"exit_code": 2, "command": "capacity", "message": "..."}}

LAUNCH_BOUND_TRACEBACK=1 in the environment prints the traceback before that line.

Needs the standard library alone and imports little of it: until this is loaded, nobody handles a
Ctrl-C.
"""

from __future__ import annotations

import atexit
import errno
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
TRACEBACK = "LAUNCH_BOUND_TRACEBACK"
FAULT = "an error of the program, not of its input"
OUT_OF_MEMORY = "out of memory"
MUCH = "ask for less, or take a machine with more"
NARROWEST = 20  # columns: in fewer there is nothing to read, and in 0 tables are blank lines
WIDEST = 10_000  # a title in the middle of 10^8 takes gigabytes
NO_ROOM_TO_LOAD = ("failed to map segment", "cannot allocate memory")  # says ld.so of a library
PRESSED: list[int] = []  # Ctrl-C, in a process that runs `program`


class CheckFailed(RuntimeError):
    """A command found something wrong with what it looked at, not with its input."""


def program(name: str, main: Callable[[], int]) -> int:
    """`guarded`, for a process that does nothing else: Ctrl-C is told as such wherever it lands.

    Libraries turn a KeyboardInterrupt that reaches them while they are imported into errors of
    their own, or print it and go on. What counts is that Ctrl-C was pressed.
    """

    def interrupt(number: int, _frame: object) -> None:
        PRESSED.append(number)
        sys.unraisablehook = lambda _told: None  # of a __del__ or a callback that it falls into
        if "logging" in sys.modules:
            sys.modules["logging"].disable()
        raise KeyboardInterrupt

    told = False  # whether a line about Ctrl-C has been written

    def last() -> None:  # of all that is done at exit
        if PRESSED:  # Python would end itself by SIGINT if it had been in an exec()
            if not told:  # the work was done, and Ctrl-C came while libraries gave back theirs
                say(f"{name}: interrupted")
            os._exit(130)

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, interrupt)
        atexit.register(last)
    width = os.environ.get("COLUMNS", "")
    # 0, where a terminal does not know its own; and a line of a table is as long as it is wide
    if width.isdecimal() and not NARROWEST <= int(width[:9]) <= WIDEST:
        del os.environ["COLUMNS"]
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")  # what an encoding cannot say
    code = guarded(name, main)
    told = code == 130
    return code


def guarded(name: str, main: Callable[[], int], *, as_json: bool = False) -> int:
    """Run `main` and return its exit code, or that of what it raised, after one line about it.

    SystemExit passes, for argparse has told what it is about.
    """
    try:
        try:
            code = main()
            if code not in (0, 130) and PRESSED:  # somebody has caught it, and failed for it
                raise KeyboardInterrupt
            return code
        finally:
            if sys.stdout is not None:
                flush()
    except SystemExit:
        if not PRESSED:
            raise
        code, words = ending(KeyboardInterrupt())
    except BaseException as error:
        if os.environ.get(TRACEBACK):
            import traceback

            traceback.print_exc()
        code, words = ending(KeyboardInterrupt() if PRESSED else error)
    if words:
        say(as_json_line(name, code, words) if as_json else f"{name}: {words}")
    return code


def flush() -> None:
    """Write what standard output still holds. Raises OSError, by name, where that is impossible;
    the interpreter does not try again."""
    try:
        sys.stdout.flush()
    except OSError as error:
        with suppress(ValueError):  # of a test, in memory
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            raise
        raise OSError(error.errno, error.strerror, "standard output") from None


def as_json_line(name: str, code: int, words: str) -> str:
    """The same for machines."""
    import json

    from mini_engine.cli.json_schema import VERSION

    error = {"exit_code": code, "command": name.partition(" ")[2] or None, "message": words}
    return json.dumps({"schema_version": VERSION, "error": error})


def say(line: str) -> None:
    """A line on standard error. If that is closed, nowhere: it does not belong among the data."""
    if sys.stderr is not None:
        with suppress(OSError):  # nobody reads it
            print(line, file=sys.stderr, flush=True)


def ending(error: BaseException) -> tuple[int, str]:
    """(exit code, one line that is not blank; "" where nothing needs to be said)."""
    words = " ".join(str(error).split())
    match error:
        case KeyboardInterrupt():
            return 130, "interrupted"
        case BrokenPipeError():  # whoever was reading has seen enough
            return 0, ""
        case CheckFailed():
            return 1, words or "a check failed"
        case MemoryError():
            if words and "memory" in words.lower():
                return 2, words
            return 2, f"{OUT_OF_MEMORY}{': ' * bool(words)}{words}: {MUCH}"
        case ImportError() if any(said in words for said in NO_ROOM_TO_LOAD):
            return 2, f"{OUT_OF_MEMORY} while {error.name or 'a library'} was loaded: {MUCH}"
        case RecursionError():
            return 2, f"nested too deeply ({words}): give a file with fewer levels"
        case ModuleNotFoundError() if not _ours(error.name or ""):
            return 2, f"{sys.executable} has no {error.name}: use .venv/bin/python, made by `make`"
        case ArithmeticError():
            return 2, f"a number is too large or too small to compute with ({words})"
        case UnicodeDecodeError():
            return 2, f"not UTF-8 text ({words})"
        case UnicodeEncodeError():
            return 2, f"text that is not Unicode, or that cannot be written here ({words})"
        case OSError(strerror=str(said)) if (
            error.filename is not None or error.errno == errno.ENOSPC
        ):
            # every file is written by its name: what has none is standard output
            name = "standard output" if error.filename is None else error.filename
            return 2, f"{name}: {said[:1].lower()}{said[1:]}"
        case ValueError() | OSError():
            return 2, words or f"bad input ({type(error).__name__})"
    return 1, f"{type(error).__name__}: {words or 'no words'} ({_place(error)}): {FAULT}"


def _ours(module: str) -> bool:
    return module.partition(".")[0] in ("mini_engine", "labs", "course", "notebooks", "tests")


def _place(error: BaseException) -> str:
    """The deepest line of the project's own files that the error came through."""
    found, trace = "unknown line", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if file.startswith(ROOT + os.sep) and "site-packages" not in file:
            found = f"{os.path.relpath(file, ROOT)}:{trace.tb_lineno}"
        trace = trace.tb_next
    return found
