"""`./lab sabotage`: one small mistake in the learner's passing file, to be found by what it does.

The mistake is a mutant (`mistakes/mutants.py`) that the lab's tests notice and that changes the
lines that `./lab show` prints.
"""

from __future__ import annotations

import difflib
import json
import random
import re
from argparse import Namespace
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from labs.runner import Done, command, workspace
from labs.runner.checks.checking import check_texts
from labs.runner.checks.warm import forks
from labs.runner.commands import chosen_lab
from labs.runner.cut.catalogue import Lab
from labs.runner.cut.cutter import functions
from labs.runner.cut.source import shown, source
from labs.runner.demo import program_of
from labs.runner.mistakes.mutants import mutants
from labs.runner.programs import Texts, heard, merged

MOST_TRIES = 12
MOST_LINES = 12  # of symptoms
LIMIT_S = 60.0  # for one show
SEEN = re.compile(r"\b(pass|(if|elif|while) (True|False)):?$")  # it says where to look


def run_sabotage(args: Namespace, console: Console) -> Done:
    """Make one small mistake in the learner's file and show what it does, or take it back."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    if args.undo:
        return _undo(lab, progress, console)
    show = program_of(lab, "show", progress)
    if is_sabotaged(lab, progress):
        raise ValueError(f"lab {lab.number} is sabotaged: {command('sabotage', lab.number)} --undo")
    if workspace.state(lab, progress) != "passed":
        raise ValueError(f"lab {lab.number} is not green: {command('check', lab.number)}")
    with console.status("looking for a mistake that shows"):
        before = _shown_by(lab, show, merged([lab]))
        if before is None:
            raise ValueError(f"{command('show', lab.number)} ends in an error")
        file, text, after = _mistake_that_shows(lab, show, before, args.seed)
    path = workspace.my_files(lab)[file]
    workspace.write(_kept(lab)[file], json.dumps([source(path), text]))
    workspace.write(path, text)
    lines = _changes(before, after)
    console.print(f"One place of {shown(path)} is not as you wrote it. What it shows:\n")
    for line in lines:
        console.print(f"  {escape(line)}")
    console.print(
        f"\nFind it from these symptoms. Again: [bold]{command('show', lab.number)}[/]   "
        f"mended: [bold]{command('check', lab.number)}[/]   "
        f"give up: [bold]{command('sabotage', lab.number, '--undo')}[/]"
    )
    return Done({"lab": lab.name, "file": str(path), "symptoms": lines})


def is_sabotaged(lab: Lab, progress: workspace.Progress) -> bool:
    """Is there a mistake of ours in it? Not once it is green: then it has been found and mended."""
    green = workspace.state(lab, progress) == "passed"
    return not green and any(kept.exists() for kept in _kept(lab).values())


# ---------------------------------------------------------------- parts


def _mistake_that_shows(lab: Lab, show: str, before: str, seed: int | None) -> tuple[str, str, str]:
    """(file, its text with a mistake, what the show prints then). A mistake that ends the show in
    an error leaves little to find, so it is passed over."""
    texts = {name: source(path) for name, path in workspace.my_files(lab).items()}
    for file, text in _mistakes(lab, seed)[:MOST_TRIES]:
        if check_texts(lab, texts | {file: text}, first=True, context=forks(lab)).passed:
            continue
        after = _shown_by(lab, show, merged([lab], {file: text}))
        if after is not None and after != before:
            return file, text, after
    raise ValueError(f"no mistake of {MOST_TRIES} changed what lab {lab.number} shows: try again")


def _shown_by(lab: Lab, show: str, texts: Texts) -> str | None:
    """What the lab's show prints with these texts in place; None if it fails or does not end."""
    found = heard(forks(lab), show, [], texts, lab.environment, LIMIT_S)
    return None if found is None or found[1] else found[0]


def _mistakes(lab: Lab, seed: int | None) -> list[tuple[str, str]]:
    """(file, text with one mistake), in random order; hidden ones where there are some."""
    texts = {file: source(path) for file, path in workspace.my_files(lab).items()}
    found = [
        (hole.file, mutant.text)
        for hole, names in lab.covered()
        for name in names
        if name in functions(texts[hole.file])
        for mutant in mutants(texts[hole.file], name)
    ]
    found = [(file, text) for file, text in found if _hidden(texts[file], text)] or found
    random.Random(seed).shuffle(found)
    return found


def _hidden(mine: str, text: str) -> bool:
    """Is one line another, and not one that is seen at a glance, `pass` or `if True:`?"""
    fresh = set(text.splitlines()) - set(mine.splitlines())
    return len(fresh) == 1 and not SEEN.search(fresh.pop())


def _changes(before: str, after: str) -> list[str]:
    """The first lines that differ: `was` and `is`."""
    marks = {"- ": "was  ", "+ ": "is   "}
    lines = difflib.ndiff(before.splitlines(), after.splitlines())
    return [marks[line[:2]] + line[2:] for line in lines if line[:2] in marks][:MOST_LINES]


def _kept(lab: Lab) -> dict[str, Path]:
    return {f: workspace.kept_by_sabotage(path) for f, path in workspace.my_files(lab).items()}


def _undo(lab: Lab, progress: workspace.Progress, console: Console) -> Done:
    """Take the mistake back, and nothing that was written since. Untouched, the lab has passed
    again. Raises ValueError where the line of the mistake is no longer there."""
    undone: list[str] = []
    sabotaged = is_sabotaged(lab, progress)
    for file, kept in _kept(lab).items():
        if sabotaged and kept.exists():
            path = workspace.my_files(lab)[file]
            before, after = json.loads(kept.read_text(encoding="utf-8"))
            now = source(path)
            mended = before if now == after else _without_mistake(now, before, after)
            if mended is None:
                raise ValueError(
                    f"{shown(path)} has been changed where the mistake was: mend it by hand "
                    f"({command('check', lab.number)}), or take {command('reset', lab.number)}"
                )
            undone += difflib.unified_diff(
                now.splitlines(), mended.splitlines(), "now", "as you wrote it", "", "", 0, ""
            )
            workspace.write(path, mended)
        kept.unlink(missing_ok=True)
    for line in undone or [f"Lab {lab.number} is as you wrote it."]:
        console.print(escape(line))
    return Done({"lab": lab.name, "diff": undone})


def _without_mistake(now: str, before: str, after: str) -> str | None:
    """The text of now, with the lines of the mistake as they were; None if they are not there once.
    A line that was only taken out is told by the one before it."""
    mine, theirs = before.splitlines(keepends=True), after.splitlines(keepends=True)
    for _, i, j, k, m in difflib.SequenceMatcher(None, mine, theirs).get_opcodes():
        if mine[i:j] != theirs[k:m]:
            first = max(0, k - 1) if k == m else k
            wrong = "".join(theirs[first:m])
            right = "".join([*theirs[first:k], *mine[i:j]])
            if now.count(wrong) != 1:
                return None
            now = now.replace(wrong, right)
    return now
