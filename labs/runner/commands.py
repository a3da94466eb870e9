"""What the commands about a learner's files do, and what they print.

In:  the parsed words and a console to write on. Out: a `Done`. Wrong input raises ValueError with
one line that says what to do.
"""

from __future__ import annotations

import difflib
import os
import time
from argparse import Namespace
from contextlib import suppress
from copy import deepcopy
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labs.runner import Done, command, workspace
from labs.runner.checks.checking import Report, check_files, check_texts, still_open
from labs.runner.checks.warm import forks
from labs.runner.cut.catalogue import PATH, Hole, Lab, all_labs, keys_beside, lab_number
from labs.runner.cut.cutter import definition_of
from labs.runner.cut.migrate import Migrated, migrate
from labs.runner.cut.source import shown, source, syntax_error
from labs.runner.doctor import INSTALL, missing
from labs.runner.mistakes.diagnosis import diagnose
from labs.runner.predict import missed, score_line, unanswered
from labs.runner.programs import merged
from labs.runner.prose import say
from labs.runner.report import as_json, done, hole_in_doubt, show_report
from labs.runner.reward import at_green, at_red, holes_so_far, on_the_way, printed
from labs.runner.workspace import FIRST, PASSED, Progress

STATES = {  # of a lab: the sign in the list, and what it means
    "passed": ("[green]✓[/]", "passed"),
    "edited": ("[green]~[/]", "changed since it passed, not checked again"),
    "failed": ("[red]✗[/]", "passed before, fails now"),
    "started": ("[yellow]·[/]", "begun"),
}


def run_list(args: Namespace, console: Console) -> Done:
    """All labs in a table, and the next step. The very first call starts a lab."""
    labs, progress = all_labs(), workspace.load_progress()
    if not progress.labs and not args.json:
        console.print(
            f"[bold]Welcome to Launch Bound.[/] {len(labs)} labs, each a file of a real engine "
            "with holes in it.\nYou need no GPU. You fill the holes in your own copy until every "
            "test passes.\n"
        )
        first = lab_number(FIRST)
        workspace.start(first, progress)
        _introduce(first, True, progress, console)
        return Done()
    standings = [workspace.standing(lab, progress) for lab in labs]
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "lab", "min", "checks", "hints", "after", "without a GPU"):
        table.add_column(name, justify="right" if name in ("min", "checks", "hints") else "left")
    rows = list(zip(labs, standings, strict=True))
    for title, on_path in (("the short path", True), ("branches, by interest", False)):
        of = [row for row in rows if (row[0].number in PATH) is on_path]
        minutes = sum(lab.minutes for lab, _ in of)
        table.add_row("", f"[bold]{title}[/]", f"{minutes / 60:.0f} h")
        for lab, where in of:
            table.add_row(
                STATES[where["state"]][0] if where["state"] else "",
                f"{'[bold]' if where['current'] else ''}{lab.number:>3} {lab.title}",
                *(str(n or "") for n in (lab.sittings, where["checks"], where["hints"])),
                ", ".join(lab.after), lab.without,
            )  # fmt: skip
    seen = {where["state"] for where in standings}
    signs = "   ".join(" ".join(words) for state, words in STATES.items() if state in seen)
    passed = sum(where["state"] in PASSED for where in standings)
    console.print(table, f"\n{signs}", holes_so_far(labs, progress), sep="\n")
    console.print(f"{passed} of {len(labs)} passed. {workspace.next_step(labs, progress)}")
    if stale := [lab for lab, where in zip(labs, standings, strict=True) if where["stale"]]:
        console.print(f"[yellow]Attention: {workspace.ask_for_update(*stale)}.[/]")
    return Done(standings)


def run_start(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    if args.number is None and workspace.standing(lab, progress)["state"] in PASSED:
        lab = workspace.next_lab(all_labs(), progress)
    if workspace.stale(lab, progress):
        raise ValueError(workspace.ask_for_update(lab))
    if args.hard and workspace.started(lab):
        raise ValueError(
            f"lab {lab.number} is started already: {command('reset', lab.number, '--hard')} "
            "cuts it anew and keeps what you wrote as a backup"
        )
    if args.hard:
        progress.of(lab).hard = True
        lab = lab.without_words()
    written = workspace.start(lab, progress)
    _introduce(lab, written, progress, console)
    return Done({"lab": lab.name, "files": [str(p) for p in workspace.my_files(lab).values()]})


def run_reset(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = lab_number(chosen_lab(args, progress).number)
    progress.of(lab).hard = args.hard
    lab = lab.without_words() if args.hard else lab
    backups = workspace.reset(lab, progress)
    for backup in backups:
        console.print(f"kept what you had: {shown(backup)}")
    _introduce(lab, True, progress, console)
    return Done({"lab": lab.name, "backups": [str(path) for path in backups]})


def _introduce(lab: Lab, fresh: bool, progress: Progress, console: Console) -> None:
    """What to predict, to read, to edit and to run, in this order."""
    length = f"about {lab.minutes} minutes"
    if lab.rest:
        length += f": {lab.rest.minutes} to hole {lab.rest.hole}, where you may stop for the day"
    console.print(f"[bold]Lab {lab.number}: {lab.title}[/], {length}")
    if lab.number == FIRST and fresh:
        console.print(f"\n{escape(printed(f'labs.{lab.name}.show', [], merged([lab]), {}) or '')}")
    if asked := unanswered(lab, progress):
        console.print(f"  predict [bold]{command('predict', lab.number)}[/]   "
                      f"{asked} question{'s' * (asked != 1)}, before anything else")  # fmt: skip
    if lab.number == FIRST:
        console.print("  read    nothing: in five minutes you see what all of this is about")
    else:
        section = f", “{lab.section}”" if lab.section else ""
        console.print(f"  read    {lab.chapter}{section}\n          labs/{lab.name}/README.md")
    for path in workspace.my_files(lab).values():
        console.print(f"  edit    {shown(path)}{'' if fresh else '  (yours, kept as it is)'}")
    keys = {} if lab.number == FIRST else keys_beside(lab)
    if named := [f"{path} (lab {number})" for path, number in keys.items()]:
        say(console, f"  closed  {', '.join(named)}: yours imports them, and they are what those "
                     "labs write", hang=8)  # fmt: skip
    for hole in lab.holes:
        verb = "mend " if hole.broken else "write"
        say(console, f"  {verb}   [bold]{hole.name}[/]: {escape(hole.task)}", hang=8)
    say(
        console,
        f"\nThen: [bold]{command('watch')}[/], which checks whenever you save "
        f"(once: {command('check')})   stuck: [bold]{command('hint')}[/]",
    )


# ---------------------------------------------------------------- check and watch


def run_check(args: Namespace, console: Console) -> Done:
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    refuse_missing_packages(lab)
    hole = _hole(args, lab)
    before = deepcopy(progress)
    with console.status(f"lab {lab.number}: running its tests"):
        if args.impl == "mine":
            report = check_mine(lab, progress, hole.number if hole else 0)
        else:
            texts, server = lab.texts(args.impl), forks(lab)
            report = check_texts(lab, texts, context=server)
            report.causes = diagnose(lab, texts, report, context=server)
    show_report(report, console, whose=args.impl, every=args.all, progress=progress)
    if args.impl == "mine":
        _beside(report, before, progress, console)
    return Done(as_json(report), 0 if report.passed else 1)


def _beside(report: Report, before: Progress, progress: Progress, console: Console) -> None:
    """The pictures of a check, and what comes next. `before` is how far the learner was."""
    if console.quiet:
        return
    if not report.passed:
        on_the_way(report, before.of(report.lab).holes, console)
        at_red(report, console)
    elif not report.hole:
        first = not workspace.solved(report.lab, before)
        at_green(report.lab, progress, first=first, console=console)
        console.print(f"\n{score_line(report.lab)}")
        for line in missed(report.lab) if first else ():
            say(console, f"  {line}", hang=2)
        console.print(workspace.next_step(all_labs(), progress))
    if report.lab.number != progress.current and (report.hole or not report.passed):
        console.print(f"[dim]You are still in lab {progress.current}.[/]")


def check_mine(lab: Lab, progress: Progress, hole: int = 0) -> Report:
    """Check the learner's files, note the outcome, and look for the causes of failures. With a
    `hole` only its tests are run, and nothing is noted."""
    workspace.refuse_unready(lab, progress)
    files = workspace.my_files(lab)
    texts = {file: source(path) for file, path in files.items()}
    server = forks(lab)
    report = check_files(lab, files, context=server, hole=hole)
    if not hole:
        fresh = workspace.load_progress()  # a hint may have been shown meanwhile
        progress.labs, progress.read = fresh.labs, fresh.read
        workspace.note(lab, progress, report.passed, hole_in_doubt(report), len(done(report)))
        workspace.save_progress(progress)
    report.causes = diagnose(lab, texts, report, context=server)
    return report


def run_watch(args: Namespace, console: Console) -> Done:
    """Check at every save until Ctrl-C. Editors save by renaming: a file may be gone a while."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    refuse_missing_packages(lab)
    workspace.refuse_unready(lab, progress)
    hole, before = _hole(args, lab), list[int]()
    while True:
        files = workspace.my_files(lab).values()
        stamps = [path.stat().st_mtime_ns if path.exists() else 0 for path in files]
        if stamps != before:
            before = stamps
            try:
                was = deepcopy(progress)
                report = check_mine(lab, progress, hole.number if hole else 0)
                show_report(report, console, whose="mine", every=False, progress=progress)
                _beside(report, was, progress, console)
                console.print("[dim]watching: save to check again, Ctrl-C to stop[/]")
            except (ValueError, OSError) as error:
                console.print(f"[dim]watching: {error}[/]")
        time.sleep(0.3)


# ---------------------------------------------------------------- help on the way


def run_hint(args: Namespace, console: Console) -> Done:
    """One more hint, the earlier ones above it; after the lab has passed those seen so far."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    hole = _hole(args, lab) or _first_open(lab, progress)
    hints = progress.of(lab).hints
    seen, passed = hints.get(str(hole.number), 0), workspace.solved(lab, progress)
    if not passed:
        seen = hints[str(hole.number)] = min(seen + 1, len(hole.hints))
        workspace.save_progress(progress)
    say(console, f"[bold]lab {lab.number}, {hole.name}[/]: {escape(hole.task)}")
    for level, hint in enumerate(hole.hints[:seen], start=1):
        say(console, f"  hint {level} of {len(hole.hints)}: {escape(hint)}", hang=2)
    if seen == len(hole.hints):
        answer = command("solution", lab.number, "--hole", hole.number)
        console.print(f"[dim]No more hints. The answer: {answer}[/]")
    if passed:
        console.print(f"Lab {lab.number} has passed: nothing is left to write.")
    return Done({"hole": hole.name, "hints": list(hole.hints[:seen]), "passed": passed})


def run_diff(args: Namespace, console: Console) -> Done:
    """A unified diff that `patch -p0` takes: from your file to the engine's way. In a file to mend
    from what was given to yours, because the engine's text would give the fault away."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    workspace.refuse_unready(lab, progress)
    to_mend = lab.to_mend()
    if not to_mend:
        _refuse_unless_solved(args, lab, progress)
    lines: list[str] = []
    for file, path in workspace.my_files(lab).items():
        mine = source(path)
        if file in to_mend:
            lines += _diff(to_mend[file], mine, path, "as it was given", "yours")
        else:
            lines += _diff(mine, lab.reference()[file], path, "yours", lab.sources[file])
    colours = {"+": "green", "-": "red"}
    lines = lines or ["Yours is the same."]
    if not console.is_terminal and not console.quiet:  # for `patch`: every character as it is
        print("\n".join(lines))
    for line in lines if console.is_terminal else ():
        console.print(line, style=colours.get(line[:1], ""), markup=False)
    return Done(lines)


def run_solution(args: Namespace, console: Console) -> Done:
    """The engine's way, one of many: the tests look at what comes out."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    chosen = _hole(args, lab)
    _refuse_unless_solved(args, lab, progress)
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
    console.print(f"[bold]Lab {lab.number}[/], the engine's way. Yours may differ and be as right.")
    for name, text in found.items():
        console.print(f"\n[bold]{name}[/]\n{escape(text.replace(chr(9), '  '))}")
    return Done(found)


def _refuse_unless_solved(args: Namespace, lab: Lab, progress: Progress) -> None:
    if not args.yes and not workspace.solved(lab, progress):
        raise ValueError(
            f"lab {lab.number} has not passed yet, and this shows the engine's way: add --yes to "
            f"see it all the same, or take one step further by {command('hint', lab.number)}"
        )


def _diff(before: str, after: str, path: Path, left: str, right: str) -> list[str]:
    """Both sides bear the learner's path, so `patch -p0` never touches another file."""
    lines = before.splitlines(), after.splitlines()
    names = f"{os.path.relpath(path)}\t{left}", f"{os.path.relpath(path)}\t{right}"
    return list(difflib.unified_diff(*lines, *names, lineterm=""))


# ---------------------------------------------------------------- a newer engine


def run_update(args: Namespace, console: Console) -> Done:
    """Carry the learner's code over to the engine of today, where it is due."""
    progress = workspace.load_progress()
    names = {lab.name.partition("_")[2]: lab.name for lab in all_labs()}
    for old in sorted(workspace.home().glob("lab*_*")):
        if (name := names.get(old.name.partition("_")[2])) and name != old.name:
            console.print(f"{old} has the number of an older course: rename it to {name}")
    labs = [lab for lab in all_labs() if workspace.stale(lab, progress)]
    if args.number is not None:
        lab = lab_number(args.number)
        if lab not in labs:
            workspace.refuse_unready(lab, progress)
        labs = [lab] if lab in labs or workspace.source_changed(lab, progress) else []
    if not labs:
        console.print("Nothing to do: your files fit this version of the engine.")
    results, refused = [], []
    for lab in labs:
        try:
            done, backups = update(lab, progress)
        except ValueError as error:
            refused.append(str(error))
            continue
        workspace.save_progress(progress)
        still = [hole.name for hole in still_open(lab, workspace.my_files(lab))]
        console.print(f"[bold]Lab {lab.number}: {lab.title}[/]")
        for name, words in (
            ("carried over", [", ".join(done.holes) or "nothing: no hole was filled"]),
            ("with them", [", ".join(done.helpers)] if done.helpers else []),
            ("still open", still),
            ("kept", [shown(backup) for backup in backups]),
            ("look at", done.remarks),
        ):
            for word in words:
                console.print(f"  {name:14} {escape(word)}")
        console.print("  What you changed outside the holes is in the kept files only.")
        console.print(f"Now: [bold]{command('check', lab.number)}[/]\n")
        results.append({"lab": lab.name, "carried": done.holes, "helpers": done.helpers,
                        "open": still, "remarks": done.remarks,
                        "backups": [str(path) for path in backups]})  # fmt: skip
    if refused:
        raise ValueError("; ".join(refused))
    return Done(results)


def update(lab: Lab, progress: Progress) -> tuple[Migrated, list[Path]]:
    """Cut anew with the learner's code moved over. Returns what became of it, and the backups.

    Old files that hold nothing of this lab stay where they are. A lab that had passed stays passed
    if all its holes moved over. Raises ValueError if an old file is not Python; then, as after any
    error, nothing has been changed.
    """
    files, folder = workspace.my_files(lab), workspace.home() / lab.name
    expected = [path for path in files.values() if path.exists()]
    old = {}
    for path in [*expected, *sorted(set(folder.glob("*.py")) - set(expected))]:
        if broken := syntax_error(path):
            raise ValueError(f"lab {lab.number} is left as it is, mend this first: {broken}")
        old[path.name] = source(path)
    state = progress.of(lab)
    had_passed = state.passed and (
        workspace.stale(lab, progress) or workspace.solved(lab, progress)
    )
    done = migrate(lab.cut(), old, lab.definitions())
    for name, text in done.texts.items():
        try:
            compile(text, name, "exec")
        except SyntaxError as error:
            raise ValueError(f"lab {lab.number} is left as it is: {error}") from error
    backups = [
        workspace.back_up(folder / name) for name in old if name in files or name in done.used
    ]
    for file, path in files.items():
        workspace.write(path, done.texts[file])
    state.started = state.started or workspace.now()
    state.source_hash = workspace.digest(lab.reference())
    if had_passed:
        open_again = bool(still_open(lab, files))
        state.failed = workspace.now() if open_again else ""
        state.passed_hash = "" if open_again else workspace.my_digest(lab)
    progress.current = lab.number
    return done, backups


# ---------------------------------------------------------------- which lab, which hole


def chosen_lab(args: Namespace, progress: Progress) -> Lab:
    """The lab that was asked for, or the current one."""
    if args.number is None and not progress.current:
        raise ValueError(f"no lab is started yet: {command('start', FIRST)}")
    lab = lab_number(progress.current if args.number is None else args.number)
    return lab.without_words() if progress.of(lab).hard else lab


def refuse_missing_packages(lab: Lab) -> None:
    """Raises ValueError with the command that installs what is missing, before anything runs."""
    if absent := missing(("pytest", *lab.packages)):
        names = " and ".join(absent)
        raise ValueError(f"lab {lab.number} needs {names}, not installed here: {INSTALL}")


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
    return lab.holes[max(0, progress.of(lab).in_doubt - 1)]
