"""What the runner prints: at most a screen, with the next step as its last line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from labs.runner import workspace
from labs.runner.cut.carry import Carried
from labs.runner.cut.catalogue import Hole, Lab, all_labs
from labs.runner.cut.source import shown
from labs.runner.doctor import INSTALL, missing
from labs.runner.words import command
from labs.runner.workspace import Progress

LEGEND = {
    "passed": "passed",
    "edited": "changed since it passed, not checked again",
    "failed": "passed before, fails now",
    "started": "begun",
}
PASSED = ("passed", "edited")


def welcome(lab: Lab, asked: int, console: Console) -> None:
    """The first minute. `asked` predictions are waited for."""
    (path,) = workspace.my_files(lab).values()
    console.print(
        f"""[bold]Welcome to Launch Bound.[/] {len(all_labs())} labs, each a file of a real engine \
with holes in it.
You need no GPU. You fill the holes in your own copy until every test passes.

Lab 1 is cut for you: [bold]{lab.title}[/], about {lab.minutes} minutes
{_before_reading(lab, asked)}  read    {lab.chapter}
          labs/{lab.name}/README.md
  edit    {shown(path)}

Now run this. It fails, and tells you in one line each what to write:

  [bold]{command("check")}[/]
"""
    )


def listing(labs: Sequence[Lab], progress: Progress, console: Console) -> None:
    """All labs in a table, and the next step."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("", "lab", "min", "checks", "hints", "needs", "without a GPU"):
        table.add_column(name, justify="right" if name in ("min", "checks", "hints") else "left")
    signs = {"passed": "[green]✓[/]", "edited": "[green]~[/]", "failed": "[red]✗[/]",
             "started": "[yellow]·[/]", "": " "}  # fmt: skip
    standings = [standing(lab, progress) for lab in labs]
    for lab, where in zip(labs, standings, strict=True):
        here = "[bold]" if where["current"] else ""
        table.add_row(
            signs[where["state"]],
            f"{here}{lab.number:>2} {lab.title}",
            str(lab.minutes),
            str(where["checks"] or ""),
            str(where["hints"] or ""),
            lab.needs,
            lab.without,
        )
    console.print(table)
    seen = {where["state"] for where in standings} - {""}
    legend = [f"{signs[state]} {words}" for state, words in LEGEND.items() if state in seen]
    console.print(f"\n{'   '.join(legend)}" if legend else "")
    passed = sum(where["state"] in PASSED for where in standings)
    console.print(f"{passed} of {len(labs)} passed. {next_step(labs, progress)}")
    stale = [lab for lab, where in zip(labs, standings, strict=True) if where["stale"]]
    if stale:
        console.print(f"[yellow]Attention: {workspace.ask_for_update(*stale)}.[/]")


def standing(lab: Lab, progress: Progress) -> dict[str, Any]:
    """One lab for `--json`: state is "" or a key of LEGEND; `checks` until it passed first, all of
    them if it has not.

    A stale lab that had passed counts as passed until its carried-over files fail.
    """
    stale, where = workspace.stale(lab, progress), ""
    state = progress.of(lab)
    if stale or workspace.started(lab):
        where = "started"
        if state.passed:
            changed = not stale and workspace.edited(lab, progress)
            red = workspace.red(lab, progress)
            where = "failed" if red else "edited" if changed else "passed"
    return {
        "lab": lab.name,
        "title": lab.title,
        "state": where,
        "stale": stale,
        "minutes": lab.minutes,
        "checks": state.took or state.checks,
        "hints": sum(state.hints.values()),
        "needs": lab.needs,
        "without": lab.without,
        "current": lab.number == progress.current,
    }


def next_step(labs: Sequence[Lab], progress: Progress) -> str:
    """The one command to run now."""
    current = next((lab for lab in labs if lab.number == progress.current), None)
    if current is not None and standing(current, progress)["stale"]:
        return f"You are in lab {current.number}: [bold]{command('update', current.number)}[/]"
    if current is not None and standing(current, progress)["state"] not in PASSED:
        return f"You are in lab {current.number}: [bold]{command('check')}[/]"
    open_labs = [lab for lab in labs if standing(lab, progress)["state"] not in PASSED]
    if not open_labs:
        return f"That is all. Now run your own engine: [bold]{command('demo')}[/]"
    later = [lab for lab in open_labs if lab.number > progress.current] or open_labs
    return f"Next: [bold]{command('start', later[0].number)}[/] ({later[0].title})"


def started(lab: Lab, fresh: bool, asked: int, console: Console) -> None:
    """What to read, what to edit and what to run. `asked` predictions are waited for."""
    console.print(f"[bold]Lab {lab.number}: {lab.title}[/], about {lab.minutes} minutes")
    console.print(_before_reading(lab, asked), end="")
    console.print(f"  read    {lab.chapter}\n          labs/{lab.name}/README.md")
    for path in workspace.my_files(lab).values():
        console.print(f"  edit    {shown(path)}{'' if fresh else '  (yours, kept as it is)'}")
    for hole in lab.holes:
        verb = "mend " if hole.broken else "write"
        console.print(f"  {verb}   [bold]{hole.name}[/]: {escape(hole.task)}")
    console.print(f"\nThen: [bold]{command('check')}[/]   stuck: [bold]{command('hint')}[/]")


def _before_reading(lab: Lab, asked: int) -> str:
    """The questions come first: the chapter answers most of them."""
    questions = f"{asked} question{'s' * (asked != 1)}"
    line = f"  predict [bold]{command('predict', lab.number)}[/]   {questions}, before you read\n"
    return line if asked else ""


def updated(
    lab: Lab, done: Carried, backups: Sequence[Path], still: Sequence[Hole], console: Console
) -> None:
    """What was carried over, what is left to write, and where the old files are."""
    console.print(f"[bold]Lab {lab.number}: {lab.title}[/]")
    console.print(f"  carried over   {', '.join(done.holes) or 'nothing: no hole was filled'}")
    if done.helpers:
        console.print(f"  with them      {', '.join(done.helpers)}")
    for hole in still:
        console.print(f"  {'to mend ' if hole.broken else 'to write'}       [bold]{hole.name}[/]")
    for backup in backups:
        console.print(f"  kept           {shown(backup)}")
    for remark in done.remarks:
        console.print(f"  [yellow]look at[/]        {escape(remark)}")
    console.print("  What you changed outside the holes is in the kept files only.")
    console.print(f"Now: [bold]{command('check', lab.number)}[/]\n")


def refuse_missing_packages(lab: Lab) -> None:
    """Raises ValueError with the command that installs what is missing, before anything runs."""
    absent = missing(lab.packages)
    if absent:
        raise ValueError(
            f"lab {lab.number} needs {' and '.join(absent)}, not installed here: {INSTALL}"
        )


def hints(lab: Lab, hole: Hole, seen: int, console: Console) -> None:
    """The hints shown so far, the newest last; also after the lab has passed."""
    console.print(f"[bold]lab {lab.number}, {hole.name}[/]: {escape(hole.task)}")
    for level, hint in enumerate(hole.hints[:seen], start=1):
        console.print(f"  hint {level} of {len(hole.hints)}: {escape(hint)}")
    if seen == 0:
        first = command("hint", lab.number, "--hole", hole.number)
        console.print(f"  no hint was asked for; before the lab has passed: {first}")
    elif seen == len(hole.hints):
        answer = command("solution", lab.number, "--hole", hole.number)
        console.print(f"[dim]No more hints. The answer: {answer}[/]")


def diff(lines: Sequence[str], console: Console, other: str) -> None:
    """`-` is yours and `+` the engine's; in a file to mend, `-` was given and `+` is yours."""
    colours = {"+": "green", "-": "red", "@": "cyan"}
    if not console.is_terminal and not console.quiet:  # for `patch`: every character as it is
        print("\n".join(lines) or f"Your file and {other} are the same.")
        return
    for line in lines:
        colour = colours.get(line[:1], "")
        console.print(f"[{colour}]{escape(line)}[/]" if colour else escape(line))
    if not lines:
        console.print(f"Your file and {other} are the same.")


def solution(lab: Lab, found: Mapping[str, str], console: Console) -> None:
    """The engine's way, one of many: the tests look at what comes out."""
    console.print(f"[bold]Lab {lab.number}[/], the engine's way. Yours may differ and be as right.")
    for name, text in found.items():
        console.print(f"\n[bold]{name}[/]" + (f"\n{escape(text)}" if text else ""))


def findings(found: Mapping[str, Any], console: Console) -> None:
    """Versions in a table, then sentences."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for name, version in found["versions"].items():
        table.add_row(name, version or "[yellow]not installed[/]")
    table.add_row("GPU", found["gpu"].get("name", "none"))
    console.print(table)
    console.print()
    for sentence in found["sentences"]:
        console.print(escape(sentence))
