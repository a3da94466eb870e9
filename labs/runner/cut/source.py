"""The text of a Python file that somebody's editor has saved, and its path as one types it."""

from __future__ import annotations

import ast
import tokenize
from pathlib import Path

from labs.runner.cut.catalogue import ROOT


def source(path: Path) -> str:
    """As Python itself would read it: without a byte order mark, with any newlines as one.

    Raises ValueError, with the path, for a file that is no text; OSError if it is not there.
    """
    try:
        with tokenize.open(path) as file:
            return file.read()
    except (UnicodeDecodeError, SyntaxError):  # bytes that are not UTF-8, an encoding nobody knows
        raise ValueError(f"{shown(path)}: not UTF-8 text: save it as UTF-8") from None


def syntax_error(path: Path) -> str:
    """One line with the place, or nothing."""
    try:
        ast.parse(source(path), filename=str(path))
    except SyntaxError as error:
        line = (error.text or "").strip()
        return f"{shown(path)}:{error.lineno}: {type(error).__name__}: {error.msg}: {line}"
    except (OSError, ValueError) as error:
        return str(error)
    return ""


def shown(path: Path | str) -> str:
    """A path as one would type it: relative to the project if it is inside."""
    path = Path(path)
    return path.relative_to(ROOT).as_posix() if path.is_relative_to(ROOT) else str(path)
