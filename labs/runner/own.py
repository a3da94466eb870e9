"""`labs show` and `labs sabotage`: what only one's own code could show, and one slip in it.

A lab's `show.py` prints, from the learner's files in the place of the engine's, the same lines at
every run: bytes, a ladder, a timeline, a text. A sabotage is one small mistake (`mutants.py`) in
the learner's own passing file that the lab's tests would notice and that changes these lines.
"""

from __future__ import annotations

import builtins
import difflib
import random
import re
import shutil
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from labs.runner import workspace
from labs.runner.checks.checking import check_texts
from labs.runner.commands import Done, chosen_lab
from labs.runner.cut.catalogue import Lab
from labs.runner.cut.cutter import functions
from labs.runner.cut.source import source
from labs.runner.mistakes.mutants import mutants
from labs.runner.play import DIED_OF, merged, output, run
from labs.runner.words import command, from_here

KEPT = ".before-sabotage"  # the ending of the copy that --undo brings back
MOST_TRIES = 12
MOST_LINES = 12  # of symptoms
LIMIT_S = 60.0  # for one show
WORD = re.compile(r"\w+|[^\w\s]")
SEEN = re.compile(r"\b(if|elif|while) (True|False):")  # nobody writes that: it says where to look


def run_show(args: Namespace, console: Console) -> Done:
    """Run the lab's show.py on the learner's code, or on the engine's if the lab has not passed."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    module = _module(lab)
    if workspace.stale(lab, progress):
        raise ValueError(workspace.ask_for_update(lab))
    sabotaged = _is_sabotaged(lab, progress)
    mine = workspace.solved(lab, progress) or sabotaged
    whose = "your own code" if mine else "the engine's code, for this lab has not passed"
    whose += ", with a mistake in it" if sabotaged else ""
    console.print(f"[dim]lab {lab.number}, on {whose}:[/]\n")
    return Done(code=run(module, args.words, merged([lab]) if mine else {}, lab.environment))


def run_sabotage(args: Namespace, console: Console) -> Done:
    """Make one small mistake in the learner's file and show what it does, or take it back."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    if args.undo:
        return _undo(lab, progress, console)
    module = _module(lab)
    if _is_sabotaged(lab, progress):
        raise ValueError(f"lab {lab.number} is sabotaged: {command('sabotage', lab.number)} --undo")
    if not workspace.solved(lab, progress) or workspace.edited(lab, progress):
        raise ValueError(f"lab {lab.number} is not green: {command('check', lab.number)}")
    with console.status("looking for a mistake that shows") as status:
        sane = output(module, merged([lab]), lab.environment, LIMIT_S)
        if _crashed(sane):
            raise ValueError(f"{command('show', lab.number)} ends in {sane.splitlines()[-1]}")
        found = None
        for tried, (file, text) in enumerate(_mistakes(lab, args.seed)[:MOST_TRIES], start=1):
            status.update(f"looking for a mistake that shows: {tried} of {MOST_TRIES} tried")
            texts = {f: source(path) for f, path in workspace.my_files(lab).items()}
            if check_texts(lab, texts | {file: text}, first=True).passed:
                continue
            symptoms = output(module, merged([lab], {file: text}), lab.environment, LIMIT_S)
            if symptoms == sane:
                continue
            if found is None or not _crashed(symptoms):
                found = file, text, symptoms
            if not _crashed(symptoms):
                break
    if found is None:
        raise ValueError(
            f"no mistake of {MOST_TRIES} changed what lab {lab.number} shows: try again"
        )
    file, text, symptoms = found
    path = workspace.my_files(lab)[file]
    shutil.copy2(path, _kept(lab)[file])
    path.write_text(text)
    lines = _changes(sane, symptoms)
    console.print(f"One place of {from_here(path)} is not as you wrote it. What it shows:\n")
    for line in lines:
        console.print(f"  {escape(line)}")
    console.print(
        f"\nFind it from these symptoms. Again: [bold]{command('show', lab.number)}[/]   "
        f"mended: [bold]{command('check', lab.number)}[/]   "
        f"give up: [bold]{command('sabotage', lab.number, '--undo')}[/]"
    )
    return Done({"lab": lab.name, "file": str(path), "symptoms": lines})


# ---------------------------------------------------------------- parts


def _module(lab: Lab) -> str:
    if not (lab.folder / "show.py").exists():
        raise ValueError(f"lab {lab.number} has nothing to show: its tests are the proof")
    return f"labs.{lab.name}.show"


def _kept(lab: Lab) -> dict[str, Path]:
    return {f: path.with_name(path.name + KEPT) for f, path in workspace.my_files(lab).items()}


def _is_sabotaged(lab: Lab, progress: workspace.Progress) -> bool:
    """Is there a mistake of ours in it? Not once it is green: then it has been found and mended."""
    green = workspace.solved(lab, progress) and not workspace.edited(lab, progress)
    return not green and any(kept.exists() for kept in _kept(lab).values())


def _mistakes(lab: Lab, seed: int | None) -> list[tuple[str, str]]:
    """(file, text with one mistake), in random order, the ones that change a line or two first,
    and of these the ones that leave nothing but the mistake behind."""
    found: list[tuple[str, str]] = []
    for file, path in workspace.my_files(lab).items():
        mine = source(path)
        known = functions(mine)
        texts = [
            mutant.text
            for hole, names in lab.covered()
            for name in names
            if hole.file == file and name in known
            for mutant in mutants(mine, name)
        ]
        lines = set(mine.splitlines())
        small = [text for text in texts if len(lines - set(text.splitlines())) <= 2]
        clean = [text for text in small if _in_one_place(mine, text)]
        found += [(file, text) for text in clean or small or texts]
    random.Random(seed).shuffle(found)
    return found


def _in_one_place(mine: str, text: str) -> bool:
    """Do the words differ in one place only? A line that was also written anew (1000.0 for 1e3,
    other quotes), became `pass` or `if True:` is seen at a glance."""
    before, after = mine.splitlines(), text.splitlines()
    old = [word for line in before if line not in set(after) for word in WORD.findall(line)]
    new = [word for line in after if line not in set(before) for word in WORD.findall(line)]
    if any(SEEN.search(line) for line in after if line not in set(before)):
        return False
    blocks = difflib.SequenceMatcher(None, old, new, autojunk=False).get_opcodes()
    return "pass" not in new and sum(kind != "equal" for kind, *_ in blocks) == 1


def _crashed(told: str) -> bool:
    """Did it end in one of Python's own errors, which name the place, so that there is little to
    find, or in a signal, after which there is nothing to look at? Triton's interpreter wraps what a
    kernel raises into an error of its own."""
    last = (told.splitlines() or [""])[-1]
    kind = getattr(builtins, last.partition(":")[0], None)
    own = isinstance(kind, type) and issubclass(kind, BaseException)
    return own or last.startswith((DIED_OF, "triton."))


def _changes(before: str, after: str) -> list[str]:
    """The lines that differ: `was` and `is`."""
    marks = {"- ": "was  ", "+ ": "is   "}
    lines = [
        marks[line[:2]] + line[2:]
        for line in difflib.ndiff(before.splitlines(), after.splitlines())
        if line[:2] in marks
    ]
    more = len(lines) - MOST_LINES
    return lines[:MOST_LINES] + ([f"and {more} lines more"] if more > 0 else [])


def _undo(lab: Lab, progress: workspace.Progress, console: Console) -> Done:
    """Bring back what was written before, and with it that the lab has passed."""
    undone = []
    if not _is_sabotaged(lab, progress):
        for kept in _kept(lab).values():
            kept.unlink(missing_ok=True)
    for file, kept in _kept(lab).items():
        if not kept.exists():
            continue
        path = workspace.my_files(lab)[file]
        now, before = source(path).splitlines(), source(kept).splitlines()
        undone += list(difflib.unified_diff(now, before, "now", "as you wrote it", "", "", 0, ""))
        kept.replace(path)
    if not undone:
        console.print(f"Lab {lab.number} is as you wrote it.")
    for line in undone:
        console.print(escape(line))
    return Done({"lab": lab.name, "diff": undone})
