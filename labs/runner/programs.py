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
from multiprocessing.context import BaseContext
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
        pairs = [f"{name}={file}" for name, file in _written(texts, folder).items()]
        line = [sys.executable, "-m", "labs.runner.programs", module, ",".join(pairs), *words]
        path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
        there = os.environ | {"PYTHONPATH": path} | dict(environment)
        return subprocess.run(line, env=there, text=True, **how)


def heard(
    server: BaseContext | None, module: str, words: Sequence[str], texts: Texts,
    environment: Texts, limit_s: float,
) -> tuple[str, int] | None:  # fmt: skip
    """What the program prints and its exit code; None if it does not end within `limit_s` seconds.
    It runs in a fork of this server, which has imported the heavy packages already, or without one
    in a process of its own."""
    if server is None:
        how: Any = {"capture_output": True, "timeout": limit_s}
        try:
            done = completed(module, words, texts, environment, **how)
        except subprocess.TimeoutExpired:
            return None
        return done.stdout, done.returncode
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        said, files = Path(folder) / "said", _written(texts, folder)
        args = (str(said), module, files, dict(environment), list(words))
        process = server.Process(target=_in_fork, args=args)  # type: ignore[attr-defined]
        process.start()
        process.join(limit_s)
        late, code = process.is_alive(), process.exitcode
        process.kill()
        process.join()
        return None if late else (said.read_text(encoding="utf-8"), code)


def _in_fork(
    said: str, module: str, files: dict[str, Path], environment: dict[str, str], words: list[str]
) -> None:
    os.environ.update(environment)
    sys.path.insert(0, str(ROOT))
    sys.stdout = open(said, "w", encoding="utf-8")  # noqa: SIM115  open until the end
    sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    _run_here(module, files, words)


def _written(texts: Texts, folder: str) -> dict[str, Path]:
    """Module -> a file in the folder with its text."""
    files = {name: Path(folder) / f"{name}.py" for name in texts}
    for name, file in files.items():
        file.write_text(texts[name], encoding="utf-8")
    return files


def _main() -> None:
    module, pairs, *words = sys.argv[1:]
    split = (pair.partition("=") for pair in pairs.split(",") if pair)
    _run_here(module, {name: Path(file) for name, _, file in split}, words)


def _run_here(module: str, files: Mapping[str, Path], words: Sequence[str]) -> None:
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
