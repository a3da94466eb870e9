"""The engine with the learner's files in the place of its own.

In:  a command of `mini_engine`, or the measuring script of a lab. Out: what it prints.

Every lab that has passed takes part. Only the definitions that differ from the engine's are put
into the engine's text, so that two labs about one file can run together.

`generate --backend cuda` takes the kernels of labs 11 to 13 into its decode steps. Where there is
no GPU they run in Triton's interpreter, as in the tests of these labs.
"""

from __future__ import annotations

import os
import runpy
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from labs.runner import workspace
from labs.runner.cut.catalogue import ROOT, Lab, all_labs
from labs.runner.cut.cutter import changed, splice
from labs.runner.cut.source import source, syntax_error
from labs.runner.cut.substitute import substitute
from labs.runner.doctor import nvidia_gpu
from labs.runner.words import command


def play(words: Sequence[str], console: Console) -> int:
    """Run `python -m mini_engine WORDS` with every solved lab in place. Returns its exit code."""
    progress = workspace.load_progress()
    labs = [lab for lab in all_labs() if of_the_engine(lab)]
    solved = [lab for lab in labs if workspace.solved(lab, progress)]
    stale = [lab for lab in labs if workspace.stale(lab, progress)]
    if stale:
        console.print(f"Left out: {workspace.ask_for_update(*stale)}.")
    for lab in labs:
        if lab not in stale and workspace.started(lab) and workspace.red(lab, progress):
            console.print(
                f"Left out: lab {lab.number}, whose last check failed "
                f"({command('check', lab.number)})"
            )
    for lab in [lab for lab in solved if workspace.edited(lab, progress)]:
        broken = [line for path in workspace.my_files(lab).values() if (line := syntax_error(path))]
        if broken:
            solved.remove(lab)
            console.print(f"Left out: lab {lab.number}, {broken[0]}")
        else:
            console.print(
                f"Lab {lab.number} has changed since it passed: it runs as it is now "
                f"({command('check', lab.number)})"
            )
    texts = merged(solved)
    if not texts:
        console.print("No lab about the engine is solved yet, so this is its own code.")
    else:
        numbers = ", ".join(str(lab.number) for lab in solved)
        console.print(f"Your code of lab {numbers} runs in the place of the engine's:")
        for module in texts:
            console.print(f"  {module}")
    environment: dict[str, str] = {}
    if by_kernels(words) and texts.keys() & KERNELS:
        words = unless_said(STEP_OF_NINE if texts.keys() & OF_NINE else {}, words)
        if not nvidia_gpu():
            console.print(INTERPRETER)
            environment = IN_THE_INTERPRETER
            words = unless_said(A_TASTE, words)
    console.print()
    return run("mini_engine", words, texts, environment)


_ROOM = "mini_engine.cuda.kernels."
# Files whose kernels run when a layer is nine of them, and not when it is five.
OF_NINE = {_ROOM + name for name in ("norm", "activation", "rope", "attention")}
KERNELS = OF_NINE | {_ROOM + name for name in ("paged", "gemv")}
STEP_OF_NINE = {"--kernels": "9"}
# With one multiprocessor to fill, a kernel is few programs: the interpreter runs one at a time.
IN_THE_INTERPRETER = {"TRITON_INTERPRET": "1", "MINI_ENGINE_SM_COUNT": "1"}
A_TASTE = {"--max-new-tokens": "3", "--mode": "NONE"}
DIED_OF = "the process died of"
INTERPRETER = (
    "No NVIDIA GPU here: your kernels run in Triton's interpreter, at a few seconds a step, "
    "so unless you say otherwise 3 tokens a prompt are written, without graphs and their warm-up."
)


def by_kernels(words: Sequence[str]) -> bool:
    """Whether the command writes with kernels: the plain model has none."""
    said = {word.removeprefix("--backend=") for word in words}
    return [*words[:1]] == ["generate"] and "cuda" in said and "--plain" not in said


def unless_said(defaults: Mapping[str, str], words: Sequence[str]) -> list[str]:
    """The command with these options before its own: of two the last counts, however spelt."""
    return [words[0], *(word for pair in defaults.items() for word in pair), *words[1:]]


def measure(lab: Lab, words: Sequence[str], console: Console) -> int:
    """Run a lab's `measure.py` with the learner's file of that lab in place, if it has passed."""
    script = lab.folder / "measure.py"
    if not script.exists():
        raise ValueError(f"lab {lab.number} has nothing to measure: its tests are the proof")
    progress = workspace.load_progress()
    if workspace.stale(lab, progress):
        raise ValueError(workspace.ask_for_update(lab))
    mine = workspace.solved(lab, progress)
    if not mine:
        console.print("You have not passed this lab yet, so the engine's own code is measured.\n")
    return run(f"labs.{lab.name}.measure", words, merged([lab] if mine else []))


def of_the_engine(lab: Lab) -> bool:
    """Does the learner's code stand for modules of the engine, and not only for the lab's own?"""
    return any(lab.module(file).startswith("mini_engine.") for file in lab.sources)


def merged(labs: Sequence[Lab], instead: Mapping[str, str] | None = None) -> dict[str, str]:
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


def run(
    module: str,
    words: Sequence[str],
    texts: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
) -> int:
    """`python -m MODULE WORDS` with these texts in the place of modules. Returns its exit code."""
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        words_of, there = _command(module, words, texts, environment, Path(folder))
        return subprocess.run(words_of, env=there).returncode


def output(
    module: str, texts: Mapping[str, str], environment: Mapping[str, str], limit_s: float
) -> str:
    """What it prints, errors' last lines and a missing end included, instead of showing it.

    Of a run that ends well no warning is told, for its last line is no symptom. A process that a
    signal ended, as one that wrote beside its memory, says which one.
    """
    with tempfile.TemporaryDirectory(prefix="labs-") as folder:
        words, there = _command(module, [], texts, environment, Path(folder))
        try:
            done = subprocess.run(words, env=there, capture_output=True, text=True, timeout=limit_s)
        except subprocess.TimeoutExpired as late:
            told = late.stdout or b""
            text = told.decode(errors="replace") if isinstance(told, bytes) else told
            return f"{text}\nno end after {limit_s:g} s"
    if done.returncode < 0:  # what the C library says then names nothing that one has written
        return f"{done.stdout}{DIED_OF} {signal.Signals(-done.returncode).name}"
    if done.returncode == 0:
        return done.stdout
    return done.stdout + "".join(done.stderr.strip().splitlines(keepends=True)[-1:])


def _command(
    module: str,
    words: Sequence[str],
    texts: Mapping[str, str],
    environment: Mapping[str, str] | None,
    folder: Path,
) -> tuple[list[str], dict[str, str]]:
    """The words of the process and its environment; the texts are written into the folder."""
    pairs = []
    for name, text in texts.items():
        file = folder / f"{name}.py"
        file.write_text(text)
        pairs.append(f"{name}={file}")
    command = [sys.executable, "-m", "labs.runner.play", module, ",".join(pairs), *words]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    return command, os.environ | {"PYTHONPATH": path} | dict(environment or {})


def unused(names: Sequence[str]) -> str:
    """A line about those of the learner's modules that a command never imported."""
    idle = [name for name in names if name not in sys.modules]
    if not idle:
        return ""
    kernels = any(name in KERNELS for name in idle)
    how = f": {command('demo', 'generate', '--backend', 'cuda')} runs kernels" if kernels else ""
    return f"This command has no use for {', '.join(idle)}{how}."


if __name__ == "__main__":
    _module, _pairs, *_words = sys.argv[1:]
    _files = {
        name: Path(file) for name, _, file in (p.partition("=") for p in _pairs.split(",") if p)
    }
    substitute(_files)
    sys.argv = [f"python -m {_module}", *_words]
    try:
        runpy.run_module(_module, run_name="__main__", alter_sys=True)
        sys.stdout.flush()
    except BrokenPipeError:  # `| head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    finally:
        if _line := unused(list(_files)):
            print(f"\n{_line}", file=sys.stderr)
