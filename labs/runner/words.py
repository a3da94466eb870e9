"""Commands as one would type them where one stands."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PACKAGED = ROOT / ".venv" / "bin" / "python"  # the Python that `make` has given the packages


def from_here(path: Path) -> str:
    """A path relative to the current folder if it is below it or both are in the checkout."""
    here = Path.cwd()
    near = path.is_relative_to(ROOT) and here.is_relative_to(ROOT)
    return os.path.relpath(path) if near or path.is_relative_to(here) else str(path)


def command(*words: str | int) -> str:
    """`.venv/bin/python -m labs WORDS`."""
    return " ".join([from_here(PACKAGED), "-m", "labs", *map(str, words)])
