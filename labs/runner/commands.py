"""What the commands of the labs do.

In:  the parsed words and a console to write on. Out: a `Done`. Wrong input raises ValueError with
one line that says what to do.
"""

from __future__ import annotations

import difflib
import sys
from argparse import Namespace
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.prompt import Confirm

from labs.runner import show, workspace
from labs.runner.checks.checking import Report, check_files, check_implementation, still_open
from labs.runner.cut.catalogue import Hole, Lab, all_labs, lab_number
from labs.runner.cut.cutter import definition_of
from labs.runner.cut.source import shown, source
from labs.runner.mistakes.diagnosis import diagnose
from labs.runner.predictions import scored, unanswered
from labs.runner.report import as_json, hole_in_doubt, show_report
from labs.runner.words import command, from_here
from labs.runner.workspace import Progress


class Done(NamedTuple):
    """What a command leaves: its result as JSON would show it, and the exit code."""

    result: Any = None
    code: int = 0


def run_list(args: Namespace, console: Console) -> Done:
    labs, progress = all_labs(), workspace.load_progress()
    if not progress.labs and not args.json:  # the first minute: lab 1 is cut, one command to run
        workspace.start(labs[0], progress)
        workspace.save_progress(progress)
        show.welcome(labs[0], unanswered(labs[0], progress), console)
        return Done()
    show.listing(labs, progress, console)
    return Done([show.standing(lab, progress) for lab in labs])


def run_start(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    if workspace.stale(lab, progress):
        raise ValueError(workspace.ask_for_update(lab))
    if args.hard:
        if workspace.started(lab):
            raise ValueError(
                f"lab {lab.number} is started already: {command('reset', lab.number, '--hard')} "
                "cuts it anew and keeps what you wrote as a backup"
            )
        progress.of(lab).hard = True
        lab = lab.without_words()
    written = workspace.start(lab, progress)
    workspace.save_progress(progress)
    show.started(lab, bool(written), unanswered(lab, progress), console)
    return Done({"lab": lab.name, "files": [str(p) for p in workspace.my_files(lab).values()]})


def run_check(args: Namespace, console: Console) -> Done:
    if args.debug and (args.json or args.impl != "mine"):
        other = "--json" if args.json else f"--impl {args.impl}"
        raise ValueError(f"--debug gives your file's tests the terminal: leave out {other}")
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    show.refuse_missing_packages(lab)
    waiting = console.status(f"lab {lab.number}: running its tests")
    with nullcontext() if args.debug else waiting:
        if args.impl == "mine":
            report = check_mine(lab, progress, debug=args.debug)
        else:
            report = check_implementation(lab, args.impl)
            report.diagnosis = diagnose(lab, lab.texts(args.impl), report)
    show_report(report, console, whose=args.impl, every=args.all, progress=progress)
    if report.passed and args.impl == "mine" and (line := scored(lab)):
        console.print(line)
    return Done(as_json(report), 0 if report.passed else 1)


def check_mine(lab: Lab, progress: Progress, *, debug: bool = False) -> Report:
    """Check the learner's files, write down what came of it, and look for the causes of failures.

    With `debug` the tests have the terminal, so that `breakpoint()` works.
    """
    workspace.refuse_unready(lab, progress)
    files = workspace.my_files(lab)
    texts = {file: source(path) for file, path in files.items()}
    report = check_files(lab, files, debug=debug)
    progress.labs = workspace.load_progress().labs  # a hint may have been shown meanwhile
    workspace.note(lab, progress, report.passed, hole_in_doubt(report))
    workspace.save_progress(progress)
    if not debug:
        report.diagnosis = diagnose(lab, texts, report)
    return report


def run_hint(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    hole = _hole(args, lab) or _first_open(lab, progress)
    hints = progress.of(lab).hints
    seen, passed = hints.get(str(hole.number), 0), workspace.solved(lab, progress)
    if not args.all and not passed:
        seen = hints[str(hole.number)] = min(seen + 1, len(hole.hints))
        workspace.save_progress(progress)
    show.hints(lab, hole, seen, console)
    if passed and not args.all:
        console.print(f"Lab {lab.number} has passed: nothing is left to write.")
    return Done({"hole": hole.name, "hints": list(hole.hints[:seen]), "passed": passed})


def run_demo(args: Namespace, console: Console) -> Done:
    from labs.runner.play import play

    return Done(code=play(args.words or ["demo"], console))


def run_measure(args: Namespace, console: Console) -> Done:
    from labs.runner.play import measure

    lab = lab_number(args.number)
    show.refuse_missing_packages(lab)
    return Done(code=measure(lab, args.words, console))


def run_diff(args: Namespace, console: Console) -> Done:
    """A unified diff that `patch -p0` takes: from your file to the engine's way."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    workspace.refuse_unready(lab, progress)
    to_mend = lab.to_mend()  # the engine's own text would give the fault away
    if not to_mend:
        _ask_first(args, lab, progress, console)
    lines: list[str] = []
    for file, path in workspace.my_files(lab).items():
        mine = source(path)
        if file in to_mend:
            lines += _diff(to_mend[file], mine, path, "as it was given", "yours")
        else:
            lines += _diff(mine, lab.reference()[file], path, "yours", lab.sources[file])
    show.diff(lines, console, "what you were given" if to_mend else "the engine's")
    return Done(lines)


def run_reset(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = lab_number(args.number) if args.number is not None else chosen_lab(args, progress)
    progress.of(lab).hard = args.hard
    lab = lab.without_words() if args.hard else lab_number(lab.number)
    backups = workspace.reset(lab, progress)
    workspace.save_progress(progress)
    for backup in backups:
        console.print(f"kept what you had: {shown(backup)}")
    show.started(lab, True, unanswered(lab, progress), console)
    return Done({"lab": lab.name, "backups": [str(path) for path in backups]})


def run_update(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    if args.number is None:
        labs = [lab for lab in all_labs() if workspace.stale(lab, progress)]
    else:
        lab = lab_number(args.number)
        stale = workspace.stale(lab, progress)
        if not stale:
            workspace.refuse_unready(lab, progress)
        labs = [lab] if stale or workspace.source_changed(lab, progress) else []
    if not labs:
        console.print("Nothing to do: your files fit this version of the engine.")
    results, refused = [], []
    for lab in labs:
        try:
            done, backups = workspace.update(lab, progress)
        except ValueError as error:
            refused.append(str(error))
            continue
        workspace.save_progress(progress)
        still = still_open(lab, workspace.my_files(lab))
        show.updated(lab, done, backups, still, console)
        results.append(
            {"lab": lab.name, "holes": done.holes, "helpers": done.helpers,
             "open": [hole.name for hole in still], "remarks": done.remarks,
             "backups": [str(path) for path in backups]}
        )  # fmt: skip
    if refused:
        raise ValueError("; ".join(refused))
    return Done(results)


def run_solution(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    chosen = _hole(args, lab)
    _ask_first(args, lab, progress, console)
    texts, to_mend = lab.reference(), lab.to_mend()
    paths = workspace.my_files(lab)
    found = {
        hole.name: "\n".join(
            _diff(to_mend[hole.file], texts[hole.file], paths[hole.file], "broken", "mended")
        )
        if hole.broken
        else definition_of(texts[hole.file], hole.name)
        for hole in ([chosen] if chosen else lab.holes)
    }
    show.solution(lab, found, console)
    return Done(found)


def run_doctor(_args: Namespace, console: Console) -> Done:
    from labs.runner.doctor import examine

    findings = examine()
    show.findings(findings, console)
    return Done(findings)


# ---------------------------------------------------------------- parts


def chosen_lab(args: Namespace, progress: Progress) -> Lab:
    """The lab that was asked for, or the current one."""
    if args.number is None and not progress.current:
        raise ValueError(f"no lab is started yet: {command('start', 1)}")
    lab = lab_number(progress.current if args.number is None else args.number)
    return lab.without_words() if progress.of(lab).hard else lab


def _hole(args: Namespace, lab: Lab) -> Hole | None:
    """The hole that `--hole` asks for, if it does."""
    if args.hole is None:
        return None
    number: int = args.hole
    if not 1 <= number <= len(lab.holes):
        raise ValueError(f"lab {lab.number} has holes 1 to {len(lab.holes)}, given {number}")
    return lab.holes[number - 1]


def _first_open(lab: Lab, progress: Progress) -> Hole:
    """The first hole that is still open in the learner's files; if none is, the one that the last
    check's failures point at, or the first."""
    with suppress(SyntaxError, ValueError, OSError):
        if holes := still_open(lab, workspace.my_files(lab)):
            return holes[0]
    number = progress.of(lab).in_doubt
    return next((hole for hole in lab.holes if hole.number == number), lab.holes[0])


def _ask_first(args: Namespace, lab: Lab, progress: Progress, console: Console) -> None:
    """Raises ValueError unless the lab has passed, or one wants to see the answer all the same."""
    if args.yes or workspace.solved(lab, progress):
        return
    if sys.stdin.isatty() and console.is_terminal:
        question = f"Lab {lab.number} has not passed yet. Show the engine's way all the same?"
        if Confirm.ask(question, console=console, default=False):
            return
        raise ValueError(f"nothing shown. One step further: {command('hint', lab.number)}")
    raise ValueError(
        f"lab {lab.number} has not passed yet, and this shows the engine's way: add --yes to see "
        f"it all the same, or take one step further by {command('hint', lab.number)}"
    )


def _diff(before: str, after: str, path: Path, left: str, right: str) -> list[str]:
    """Both sides bear the learner's path, so `patch -p0` never touches another file."""
    lines = before.splitlines(), after.splitlines()
    names = f"{from_here(path)}\t{left}", f"{from_here(path)}\t{right}"
    return list(difflib.unified_diff(*lines, *names, lineterm=""))
