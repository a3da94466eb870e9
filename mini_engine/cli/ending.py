"""How a program ends: whatever it raises, imports included, becomes one line on standard error.

The exit code is 0 also when the reader of a pipe has seen enough; 1 where a check failed or the
program itself is at fault; 2 for bad input, or not enough memory or room on the disk; 130 for
Ctrl-C. With `as_json` the line is {"error": {"exit_code": 2, "command": "capacity", "message":
"..."}}. LAUNCH_BOUND_TRACEBACK=1 in the environment prints the traceback before it.
"""

import errno
import json
import os
import sys
import traceback
from collections.abc import Callable

TRACEBACK = "LAUNCH_BOUND_TRACEBACK"
FAULT = "an error of the program, not of its input"
OUT_OF_MEMORY = "out of memory: ask for less, or take a machine with more"


class CheckFailed(RuntimeError):
    """A command found something wrong with what it looked at, not with its input."""


def guarded(name: str, main: Callable[[], int], *, as_json: bool = False) -> int:
    """The exit code of `main`, or of what it raised."""
    try:
        code = main()
        sys.stdout.flush()  # a full disk or a closed pipe shows here, and not at the very end
        return code
    except SystemExit:  # argparse has printed what it is about
        raise
    except BaseException as error:
        if os.environ.get(TRACEBACK):
            traceback.print_exc()
        code, words = ending(error)
        if isinstance(error, OSError):
            try:  # what standard output still holds cannot be written:
                sys.stdout.flush()
            except OSError:  # the interpreter is not to try again
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if words:
        told = {"exit_code": code, "command": name.partition(" ")[2] or None, "message": words}
        line = json.dumps({"error": told}) if as_json else f"{name}: {visible(words)}"
        print(line, file=sys.stderr, flush=True)
    return code


def ending(error: BaseException) -> tuple[int, str]:
    """(exit code, one line; "" where nothing needs to be said)."""
    words = " ".join(str(error).split())
    match error:
        case KeyboardInterrupt():
            return 130, "interrupted"
        case BrokenPipeError():  # whoever was reading has seen enough
            return 0, ""
        case CheckFailed():
            return 1, words
        case MemoryError():
            return 2, words if "memory" in words.lower() else OUT_OF_MEMORY
        # torch, which need not be here, has a type for it on a GPU, and only words on a CPU
        case RuntimeError() if "OutOfMemory" in type(error).__name__ or "t allocate mem" in words:
            return 2, f"{OUT_OF_MEMORY} ({words:.160})"
        case ModuleNotFoundError(name=str(missing)) if not missing.startswith("mini_engine"):
            return 2, f"{sys.executable} has no {missing}: .venv/bin/python has, after `make test`"
        case OSError(strerror=str(said)) if error.filename or error.errno == errno.ENOSPC:
            # every file is opened by its name: what has none is standard output
            return 2, f"{error.filename or 'standard output'}: {said[:1].lower()}{said[1:]}"
        case ValueError() | OSError() | ArithmeticError():  # a number too large to compute with
            return 2, words or f"bad input ({type(error).__name__})"
    frames = traceback.extract_tb(error.__traceback__)[-1:]
    place = "".join(f" ({frame.filename}:{frame.lineno})" for frame in frames)
    return 1, f"{type(error).__name__}: {words or 'no words'}{place}: {FAULT}"


def visible(text: str) -> str:
    """A text without orders to the terminal: what cannot be printed as Python would write it."""
    return "".join(one if one.isprintable() or one == "\n" else repr(one)[1:-1] for one in text)
