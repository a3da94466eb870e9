"""How the tests read the Markdown of this repository: fences, commands, shown output, links.

What the word after the three backticks means, in every document:

    sh          commands, one a line, which are run; a `text` fence right after it is their output
    python      code that is run in order, in one namespace for the document; `text` as above
    python from FILE:SYMBOL    an excerpt: every line stands in that symbol's source, in order
    sh gpu, python gpu         needs an NVIDIA GPU and is not run elsewhere
    sh slow     takes minutes or would run this suite inside itself: not run
    text        shown output or, after nothing that runs, a drawing
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from mini_engine.cli import main
from tests.support.warm_python import warm_python

ROOT = Path(__file__).parent.parent.parent
FENCE = re.compile(r"^(```+)([^\n`]*)\n(.*?)^\1[ ]*$\n?", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(<?([^)#>\s]*)(#[^)>\s]*)?>?\)")
ELLIPSIS = ("…", "...")
TIME_LIMIT_S = 120


@dataclass(frozen=True)
class Fence:
    """A fenced block. `shows` is the content of the `text` fence right after it."""

    info: str
    body: str
    line: int
    shows: str | None = None

    @property
    def commands(self) -> list[str]:
        """The commands of a shell block, with continued lines joined."""
        joined = self.body.replace("\\\n", " ")
        lines = (line.strip() for line in joined.splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def fences(text: str) -> list[Fence]:
    """Every fenced block of a document in order; shown output becomes part of what made it."""
    found: list[tuple[Fence, int]] = []
    for match in FENCE.finditer(text):
        fence = Fence(match[2].strip(), match[3], text.count("\n", 0, match.start()) + 1)
        between = text[found[-1][1] : match.start()].strip() if found else "nothing ran yet"
        if fence.info == "text" and between in ("", "</details>"):  # code is often folded away
            before, _ = found.pop()
            fence = Fence(before.info, before.body, before.line, fence.body)
        found.append((fence, match.end()))
    return [fence for fence, _ in found]


def prose(text: str) -> str:
    """A document without its fenced blocks."""
    return FENCE.sub("", text)


def run(words: list[str], where: Path, columns: int = 100) -> subprocess.CompletedProcess[str]:
    """Run in the folder `where`, so that no test overwrites what another one looks at.

    `columns` is the width of the terminal that the command believes it writes to.
    """
    env = {"LABS_HOME": str(where / "mine"), **os.environ}  # labs are cut there as well
    env |= {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "COLUMNS": str(columns)}
    return subprocess.run(
        words, cwd=where, env=env, capture_output=True, text=True, timeout=TIME_LIMIT_S
    )


def run_command(command: str, where: Path) -> subprocess.CompletedProcess[str]:
    """Run a command of a document with this interpreter instead of the one in .venv. One of the
    engine's own runs in this process, which has imported the engine and read its files already."""
    words = shlex.split(command)
    if words[0] in (".venv/bin/python", "python"):
        if words[1:3] == ["-m", "mini_engine"] and words[3] in QUICK:
            return _run_here(words[3:], where)
        words[0] = warm_python()
    elif words[0] == "./lab":
        words[:1] = [warm_python(), "-m", "labs"]
    elif words[0] == "make":
        where = ROOT
    return run(words, where)


# Those that neither serve nor run PyTorch, whose settings are of a whole process.
QUICK = ("explain", "crossover", "ladder", "capacity", "serve", "fleet", "validate")


def _run_here(words: list[str], where: Path) -> subprocess.CompletedProcess[str]:
    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.chdir(where), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err),
        pytest.MonkeyPatch.context() as patched,
    ):  # fmt: skip
        patched.setenv("COLUMNS", "100")
        try:
            code = main(words)
        except SystemExit as end:  # of argparse
            code = int(end.code or 0)
    return subprocess.CompletedProcess(words, code, out.getvalue(), err.getvalue())


def missing_lines(shown: str, printed: str) -> list[str]:
    """Lines that a document shows but that were not printed, or not in that order."""
    rest = iter([line.rstrip() for line in printed.splitlines()])
    wanted = [line.rstrip() for line in shown.splitlines()]
    wanted = [line for line in wanted if line and line.strip() not in ELLIPSIS]
    return [line for line in wanted if line not in rest]


def symbol_source(where: str) -> str:
    """The source of `mini_engine/sim/graphs.py:GraphRunner.run_at`, or of a whole file."""
    file, _, symbol = where.partition(":")
    text = (ROOT / file).read_text()
    node: ast.AST = ast.parse(text)
    for name in filter(None, symbol.split(".")):
        inside = [child for child in ast.iter_child_nodes(node) if name in _names(child)]
        if not inside:
            raise LookupError(f"{file} has no {symbol}")
        node = inside[0]
    return text if isinstance(node, ast.Module) else ast.get_source_segment(text, node) or ""


def _names(node: ast.AST) -> list[str | None]:
    """The names that a definition or an assignment defines."""
    targets = [*getattr(node, "targets", []), getattr(node, "target", None)]
    return [getattr(node, "name", None), *(getattr(target, "id", None) for target in targets)]


def anchors(text: str) -> set[str]:
    """The anchors that a forge gives to the headings of a document (GitHub's rule)."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6}\s+(.+?)\s*$", prose(text), re.MULTILINE):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        found.add(slug if slug not in found else f"{slug}-1")
    return found


NUMBER = re.compile(r'(?<=[\s"(,MLCQ])(-?\d+(?:\.\d+)?)(?=[\s"),MLCQz])')


def same_figure(one: str, other: str) -> bool:
    """Two SVGs of one figure. Versions of matplotlib measure letters a little differently; the
    shapes must not move by 2 points."""
    kept, fresh = NUMBER.split(one), NUMBER.split(other)
    moved = [abs(float(a) - float(b)) for a, b in zip(kept[1::2], fresh[1::2], strict=False)]
    return kept[::2] == fresh[::2] and max(moved) < 2
