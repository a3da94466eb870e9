"""The engine with the learner's files in the place of its own.

In:  a command of `mini_engine`, or the measuring script of a lab. Out: what it prints.

Every lab that is passed takes part: of the learner's file, the definitions that differ from the
engine's are put into the engine's text, so that two labs about one file do not shut each other out.
"""

from __future__ import annotations

import runpy
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from rich.console import Console

from labs.runner import workspace
from labs.runner.catalogue import ROOT, Lab, all_labs
from labs.runner.cutter import changed, splice
from labs.runner.substitute import substitute


def play(words: Sequence[str], console: Console) -> int:
    """Run `python -m mini_engine WORDS` with every solved lab in place. Returns its exit code."""
    progress = workspace.load_progress()
    solved = [lab for lab in all_labs() if workspace.solved(lab, progress.of(lab))]
    texts = merged(solved)
    if not texts:
        console.print("No lab about the engine is solved yet, so this is its own code.")
    else:
        labs = ", ".join(str(lab.number) for lab in solved if of_the_engine(lab))
        console.print(f"Your code of lab {labs} runs in the place of the engine's:")
        for module in texts:
            console.print(f"  {module}")
    console.print()
    return run("mini_engine", words, texts)


def measure(lab: Lab, words: Sequence[str], console: Console) -> int:
    """Run a lab's `measure.py` with the learner's file of that lab in place, if it is passed."""
    script = lab.folder / "measure.py"
    if not script.exists():
        raise ValueError(f"lab {lab.number} has nothing to measure: it is proven by its tests")
    progress = workspace.load_progress()
    mine = workspace.solved(lab, progress.of(lab))
    if not mine:
        console.print("You have not passed this lab yet, so the engine's own code is measured.\n")
    return run(f"labs.{lab.name}.measure", words, merged([lab] if mine else [], whole_modules))


def of_the_engine(lab: Lab) -> list[str]:
    """The learner's files of a lab that stand for modules of the engine."""
    return [file for file in lab.sources if lab.module(file).startswith("mini_engine.")]


def whole_modules(lab: Lab) -> list[str]:
    """Those, and files that stand for a module of the lab itself."""
    own = {f: path.removesuffix(".py").replace("/", ".") for f, path in lab.sources.items()}
    return [file for file, module in own.items() if lab.module(file) == module]


def merged(
    labs: Sequence[Lab], files_of: Callable[[Lab], list[str]] = of_the_engine
) -> dict[str, str]:
    """Module -> the engine's text with what the learner wrote in these labs."""
    texts: dict[str, str] = {}
    for lab in labs:
        files, reference = workspace.my_files(lab), lab.reference()
        for file in files_of(lab):
            module = lab.module(file)
            fragment = changed(reference[file], files[file].read_text())
            texts[module] = splice(texts.get(module, reference[file]), fragment)
    return texts


def run(module: str, words: Sequence[str], texts: Mapping[str, str]) -> int:
    """`python -m MODULE WORDS` with these texts in the place of modules. Returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        pairs = []
        for name, text in texts.items():
            file = Path(folder) / f"{name}.py"
            file.write_text(text)
            pairs.append(f"{name}={file}")
        command = [sys.executable, "-m", "labs.runner.play", module, ",".join(pairs), *words]
        return subprocess.run(command, env=_environment()).returncode


def _environment() -> dict[str, str]:
    import os

    paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | {"PYTHONPATH": os.pathsep.join(paths)}


if __name__ == "__main__":
    _module, _pairs, *_words = sys.argv[1:]
    substitute(
        {name: Path(file) for name, _, file in (p.partition("=") for p in _pairs.split(",") if p)}
    )
    sys.argv = [f"python -m {_module}", *_words]
    runpy.run_module(_module, run_name="__main__", alter_sys=True)
