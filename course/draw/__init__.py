"""The figures of the chapters: a module a chapter, each figure drawn from the engine's own numbers.

    python -m course.draw              draw them all into course/figures
    python -m course.draw 05           those of chapter 5

A module `chNN` has `FIGURES`: the file's name and a function that draws it into a path. Nothing in
a figure is typed in by hand that the engine can compute; `tests/course/test_course.py` draws every
figure again and compares it with the one that is kept.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from pathlib import Path

KEPT = Path(__file__).parent.parent / "figures"
Draw = Callable[[Path], None]


def figures(chapter: str = "") -> dict[str, Draw]:
    """File name -> the function that draws it, of one chapter ("05") or of all of them."""
    found: dict[str, Draw] = {}
    for module in sorted(info.name for info in pkgutil.iter_modules([str(Path(__file__).parent)])):
        if module.startswith((f"ch{chapter}", "ledger")[: 1 if chapter.isdigit() else 2]):
            found |= importlib.import_module(f"course.draw.{module}").FIGURES
    if not found:
        raise ValueError(f"no figures of chapter {chapter!r}: expected two digits, such as 05")
    return found
