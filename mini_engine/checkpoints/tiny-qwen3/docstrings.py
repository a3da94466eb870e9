"""The text that the checkpoint is trained on: docstrings of Python's standard library.

In:  the standard library of the Python that runs this.
Out: cleaned, distinct docstrings, in path order: about 1.4 MB of English about code.
"""

from __future__ import annotations

import ast
import sysconfig
from pathlib import Path

TESTS = {"test", "tests", "idlelib", "idle_test", "lib2to3", "site-packages", "turtledemo"}
GENERATED = {"encodings", "pydoc_data"}  # the same sentence a hundred times


def collect_docstrings() -> list[str]:
    root = Path(sysconfig.get_paths()["stdlib"])
    found: dict[str, None] = {}
    for path in sorted(root.rglob("*.py")):
        if (TESTS | GENERATED) & set(path.relative_to(root).parts):
            continue
        try:
            tree = ast.parse(path.read_text("utf-8"))
        except (SyntaxError, UnicodeDecodeError):
            continue  # files kept broken on purpose
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = clean(ast.get_docstring(node) or "")
                if len(text) >= 30:
                    found[text] = None
    return list(found)


def clean(docstring: str) -> str:
    """Prose paragraphs only: wrapped lines joined, doctests, tables and listings dropped."""
    kept = []
    for paragraph in docstring.split("\n\n"):
        text = " ".join(paragraph.split())
        if not text or ">>>" in text or not text.isascii():
            continue
        # Sentences are made of letters; signatures, tables and ASCII art are not.
        if sum(c.isalpha() or c == " " for c in text) / len(text) >= 0.85:
            kept.append(text)
    return "\n\n".join(kept)
