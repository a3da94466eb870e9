"""What a check shows beside its words: at green what the learner's code now does, at red where it
does something else than the engine's.

In:  a lab that was checked. Out: the lines of programs that run on the learner's files.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.context import BaseContext

from rich.console import Console
from rich.markup import escape

from labs.runner import command, workspace
from labs.runner.checks.checking import Report
from labs.runner.checks.warm import forks
from labs.runner.cut.catalogue import PATH, Lab, all_labs
from labs.runner.cut.source import source
from labs.runner.predict import answers, questions
from labs.runner.programs import Texts, heard, merged
from labs.runner.prose import say
from labs.runner.report import done
from labs.runner.workspace import Progress

LIMIT_S = 20.0  # for a picture; who is slower goes without
MOST_LINES = 12
GROWTH = "labs.support.growth"
EXPLAIN = ".venv/bin/python -m mini_engine explain --shape qwen3-0.6b --spec h200 --itl 9.9"


def at_green(lab: Lab, progress: Progress, *, first: bool, console: Console) -> None:
    """Holes so far, what the engine of the solved labs can do, and what this lab shows. A lab with
    PyTorch shows it by itself when it becomes green, for that takes seconds."""
    labs = all_labs()
    console.print(holes_so_far(labs, progress))
    solved = [one for one in labs if workspace.solved(one, progress)]
    numbers = [one.number for one in solved]
    before = [number for number in numbers if number != lab.number or not first]
    texts = merged([one for one in solved if one.of_the_engine and "torch" not in one.packages])
    if lab.of_the_engine:
        words = [",".join(before), ",".join(numbers)]
        said = printed(GROWTH, words, texts, {}, forks(lab))
        console.print(f"\n{escape(said or '')}".rstrip())
    if (lab.folder / "show.py").exists():
        if first or "torch" not in lab.packages:
            shown = shown_by(lab, merged([lab]))
            if shown:
                console.print(f"\n[bold]What your code does[/] ({command('show', lab.number)})\n")
                console.print(escape(shown.rstrip()))
        else:
            console.print(f"\nWhat your code does: [bold]{command('show', lab.number)}[/]")
    for hole in lab.holes if first else ():
        if hole.real:
            say(console, f"  {hole.name}: {escape(hole.real)}", hang=2)
    if first and lab.number in PATH and {*PATH} <= {*numbers}:
        _finale(labs, texts, console)


def _finale(labs: Sequence[Lab], texts: Texts, console: Console) -> None:
    """What the short path has cut, how good the predictions were, and the learner's own server."""
    console.print(
        f"\n[bold]The short path is done.[/] {printed(GROWTH, ['path'], texts, {}) or ''}"
    )
    given = answers([one for lab in labs if lab.number in PATH for one in questions(lab)])
    right = sum(one.right for one in given)
    console.print(f"Of your {len(given)} predictions on the way {right} were right "
                  f"({command('ledger')}). Now ask about your own server:")  # fmt: skip
    console.print(f"  [bold]{EXPLAIN}[/]\nwith your model, your card and your ms a token.")


def on_the_way(report: Report, had: int, console: Console) -> None:
    """Where more holes are done than the `had` of the last check, and others are open: what the
    lab's show prints until it meets one of those (not in lab 6, whose files run, only wrongly), and
    the word that one may stop here. With PyTorch, which takes seconds, only where one may."""
    lab, ready = report.lab, done(report)
    if report.hole or report.stopped or not report.open or len(ready) <= had:
        return
    here = lab.rest and had < lab.rest.hole and {*range(1, lab.rest.hole + 1)} <= {*ready}
    to_see = (lab.folder / "show.py").exists() and not lab.to_mend()
    if to_see and ("torch" not in lab.packages or here):
        texts = {file: source(path) for file, path in workspace.my_files(lab).items()}
        said = shown_by(lab, merged([lab], texts)) or ""
        if said.strip():
            console.print(f"\n[bold]What your code does so far[/]\n{escape(said.rstrip())}")
    if lab.rest and here:
        left = lab.minutes - lab.rest.minutes
        say(console, f"\n[bold]You may stop here[/], with {len(ready)} of {len(lab.holes)} holes: "
                     f"{escape(lab.rest.have)} The rest takes about {left} minutes.")  # fmt: skip


def at_red(report: Report, console: Console) -> None:
    """The first lines of the lab's show that differ, the learner's above the engine's, of which
    there are none before a hole is done, and none where the learner's has nothing. Nothing for a
    run that was stopped, a hole that is open, or a lab with PyTorch."""
    lab = report.lab
    slow = "torch" in lab.packages or not (lab.folder / "show.py").exists()
    if slow or report.stopped or report.open or not report.failed:
        return
    texts = {file: source(path) for file, path in workspace.my_files(lab).items()}
    both_texts = (merged([lab], texts), merged([lab], lab.reference()))  # mended, in lab 6
    with ThreadPoolExecutor(2) as both:
        mine, right = both.map(lambda texts: shown_by(lab, texts), both_texts)
    if right is None or not (lines := differing(mine or "", right, earned=bool(done(report)))):
        return
    console.print(f"\n[bold]Seen from outside[/] (what {command('show', lab.number)} prints)")
    for mark, line in lines:
        console.print(f"  {mark}  {escape(line)}")


def differing(mine: str, right: str, *, earned: bool) -> list[tuple[str, str]]:
    """The first lines of `mine` that differ, each with whose it is; what is right only if `earned`,
    and only beside a line that is not."""
    yours, rights = mine.splitlines(), right.splitlines()
    lines = list[tuple[str, str]]()
    for _, i, i_end, j, j_end in difflib.SequenceMatcher(None, yours, rights, False).get_opcodes():
        if yours[i:i_end] != rights[j:j_end]:
            lines += [("[red]yours[/]", line) for line in yours[i:i_end]]
            beside = rights[j : min(j_end, j + i_end - i)] if earned else []
            lines += [("[green]right[/]", line) for line in beside]
    return lines[:MOST_LINES]


def holes_so_far(labs: Sequence[Lab], progress: Progress) -> str:
    """`■■■■□□□□□□ 41 of 122 holes are yours`."""
    count = sum(len(lab.holes) for lab in labs)
    mine = sum(
        len(lab.holes) if workspace.solved(lab, progress) else progress.labs[lab.number].holes
        for lab in labs
        if lab.number in progress.labs
    )
    wide = max(round(40 * mine / count), min(mine, 1))
    return f"[green]{'■' * wide}[/]{'□' * (40 - wide)} {mine} of {count} holes are yours"


def shown_by(lab: Lab, texts: Texts) -> str | None:
    """What a lab's show prints with these texts in place."""
    return printed(f"labs.{lab.name}.show", [], texts, lab.environment, forks(lab))


def printed(
    module: str,
    words: list[str],
    texts: Texts,
    environment: Texts,
    server: BaseContext | None = None,
) -> str | None:
    """What a program prints with these texts in place, also if an error ends it; None if it does
    not end by itself. Forked from the server of the check, if there is one."""
    found = heard(server, module, words, texts, environment, LIMIT_S)
    return found and found[0]
