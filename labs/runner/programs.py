"""Programs with the learner's files in the place of the engine's modules.

In:  a module to run, its words, and texts for other modules. Out: a process that has ended.

Only the definitions that differ from the engine's are put into the engine's text, so that two labs
about one file can run together. `python -m labs.runner.programs MODULE PAIRS WORDS` is the process
that this file starts: it puts the files in place and runs the module.
"""

from __future__ import annotations

import importlib
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from labs.runner import workspace
from labs.runner.cut.catalogue import ROOT, Lab
from labs.runner.cut.cutter import changed, splice
from labs.runner.cut.source import source
from labs.runner.cut.substitute import substitute

Texts = Mapping[str, str]


def merged(labs: Sequence[Lab], instead: Texts | None = None) -> dict[str, str]:
    """Module -> the engine's text with what the learner wrote in these labs.

    `instead` (file -> text) is taken in the place of the learner's own.
    """
    texts: dict[str, str] = {}
    for lab in labs:
        files, reference = workspace.my_files(lab), lab.reference()
        for file in lab.sources:
            module = lab.module(file)
            mine = (instead or {}).get(file) or source(files[file])
            fragment = changed(reference[file], mine)
            texts[module] = splice(texts.get(module, reference[file]), fragment)
    return texts


def run(module: str, words: Sequence[str], texts: Texts, environment: Texts | None = None) -> int:
    """`python -m MODULE WORDS` with these texts in the place of modules. Returns its exit code."""
    return completed(module, words, texts, environment or {}).returncode


def completed(
    module: str, words: Sequence[str], texts: Texts, environment: Texts, **how: Any
) -> subprocess.CompletedProcess[str]:
    """The same as a finished process; `how` is what `subprocess.run` takes."""
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        pairs = []
        for name, text in texts.items():
            file = Path(folder) / f"{name}.py"
            file.write_text(text, encoding="utf-8")
            pairs.append(f"{name}={file}")
        line = [sys.executable, "-m", "labs.runner.programs", module, ",".join(pairs), *words]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        there = os.environ | {"PYTHONPATH": path} | dict(environment)
        return subprocess.run(line, env=there, text=True, **how)


def _main() -> None:
    module, pairs, *words = sys.argv[1:]
    files = {
        name: Path(file) for name, _, file in (p.partition("=") for p in pairs.split(",") if p)
    }
    substitute(files)
    if os.environ.get("TRITON_INTERPRET") == "1":
        importlib.import_module("labs.support.interpreter").install_bf16_guard()
    sys.argv = [f"python -m {module}", *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if idle := [name for name in files if name not in sys.modules]:
            print(f"\nThis command has no use for {', '.join(idle)}.", file=sys.stderr)


if __name__ == "__main__":
    _main()
