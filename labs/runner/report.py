"""What a check prints: open holes, then each cause of failure once, with the inputs that failed.

In:  a `Report` and a console. Out: text for people, or the same as JSON.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from rich.console import Console
from rich.markup import escape

from labs.runner import command, workspace
from labs.runner.checks.checking import Outcome, Report, number_of
from labs.runner.cut.catalogue import Lab
from labs.runner.cut.holes import hole_of, holes_of, tests_of
from labs.runner.cut.source import shown
from labs.runner.prose import say
from labs.runner.workspace import Progress

IN_FULL = 3  # causes that are shown with all that is known; the others in a line
LINES_PRINTED = 20
REMARKS = {  # on errors whose own words say too little
    "MemoryError": "This lab may use {memory_gb:g} GB: how much does your code allocate?",
    "SystemExit": "Code under test returns or raises: it does not end the process.",
    "RecursionError": "Does a function call itself without an end?",
}
READ_ONLY = "The tests give their inputs read-only: write into an array of your own, or a copy."


def show_report(
    report: Report, console: Console, *, whose: str, every: bool, progress: Progress
) -> None:
    """The outcome of a check. With `every`, each failing test in full."""
    lab = report.lab
    whose = "" if whose == "mine" else f" ({whose})"
    passed = sum(o.outcome == "passed" for o in report.outcomes)
    counted = f"{passed} of {len(report.outcomes)} tests pass"
    if report.hole and report.passed:
        name = lab.holes[report.hole - 1].name
        console.print(
            f"[green]✓[/] hole {report.hole} of {len(lab.holes)} done, [bold]{name}[/]: {counted}. "
            f"The whole lab: [bold]{command('check')}[/]"
        )
        return
    for outcome in report.outcomes:
        if outcome.outcome == "skipped":
            console.print(f"[yellow]–[/] {escape(outcome.sentence)}: {escape(outcome.reason)}")
    if report.passed:
        console.print(f"[green]✓[/] [bold]lab {lab.number}: {lab.title}[/]{whose}: {counted}")
        if not whose:
            _after_green(lab, console)
        return
    if report.stopped:
        _stopped(report, whose, console)
    else:
        if not whose and not report.hole:
            console.print(_bar(report))
        _open_holes(report, console)
    _failures(report, console, every=every)
    if report.unsought:
        console.print("[dim]The time ran out before each known mistake was held against yours.[/]")
    if not report.stopped:
        stuck = f" Stuck: [bold]{command('hint')}[/]" if not whose else ""
        console.print(f"\nlab {lab.number}{whose}: {counted}.{stuck}")
    if not whose and workspace.source_changed(lab, progress):
        console.print(
            f"[dim]The engine's file has changed since yours was cut. If a test asks for something "
            f"that your file has no place for: {command('update', lab.number)} (keeps a backup).[/]"
        )


def as_json(report: Report) -> dict[str, Any]:
    """A report as JSON; `causes` are the misconceptions that explain a failure."""
    named = report.causes
    fields = ("test", "outcome", "catches", "todo", "error", "message", "asserted", "inputs",
              "printed", "where")  # fmt: skip
    return {
        "lab": report.lab.name,
        "passed": report.passed,
        "stopped": report.stopped,
        "where": report.where,
        "todos": report.todos,
        "tests": [
            {field: getattr(o, field) for field in fields} | {"causes": named.get(o.test, ())}
            for o in report.outcomes
        ],
    }


def done(report: Report) -> list[int]:
    """The holes that are filled and whose tests pass; none where the run did not finish."""
    return [number for number, other in _standing(report).items() if not other]


def _standing(report: Report) -> dict[int, int]:
    """Hole -> 0 if it is done, or the hole that it waits for: a test that fails and also uses a
    hole that is not done says nothing against one of which others pass, unless that one raised the
    error. The others are left out."""
    lab, undone = report.lab, {hole.number for hole in report.open}
    red, tests = {o.test for o in report.failed}, [o.test for o in report.outcomes]
    met = {o.test: number_of(o.todo) for o in report.failed}  # the open hole that it ran into
    within = {hole.number: hole.writes for hole in lab.holes}
    waits: dict[int, int] = {}
    if report.stopped:
        return {}
    for number in (hole.number for hole in lab.holes if hole.number not in undone):
        own = tests_of(lab, number, tests)
        its_fault = {test for test in own & red if not undone & {*holes_of(lab, test), met[test]}}
        its_fault |= {o.test for o in report.failed if not o.todo and o.within in within[number]}
        if its_fault:
            undone.add(number)
            continue
        none = own & red == own  # passes; where some do, those that go on to later holes can wait
        belong = {test for test in own & red if none or hole_of(lab, test) == number}
        others = {other for test in belong for other in (*holes_of(lab, test), met[test])}
        waits[number] = min(undone & others, default=0)
        undone |= {number} if belong else set()
    return waits


def _bar(report: Report) -> str:
    """`■■▒□□ 2 of 5 holes done`, which were done by the last save, and what others wait for."""
    ready, waits, count = done(report), _standing(report), len(report.lab.holes)
    cells = "".join("■" if n in ready else "▒" if n in waits else "□" for n in range(1, count + 1))
    names = ", ".join(report.lab.holes[n - 1].name for n in ready)
    later = "".join(f"; {report.lab.holes[n - 1].name} waits for hole {other}"
                    for n, other in waits.items() if other)  # fmt: skip
    counted = f"{len(ready)} of {count} holes done{f': {names}' if names else ''}"
    return f"[green]{cells}[/] {counted}{later}"


def hole_in_doubt(report: Report) -> int:
    """Number of the hole that the first failure points at; 0 if all are well or none is named.

    A test may name several: what the earlier ones do by themselves has been tested before it.
    """
    failed = [outcome for outcome in report.failed if not outcome.todo]
    return max(holes_of(report.lab, failed[0].test), default=0) if failed else 0


# ---------------------------------------------------------------- green


def _after_green(lab: Lab, console: Console) -> None:
    console.print(f"\nYou have shown: {escape(lab.proves)}")
    if (lab.folder / "measure.py").exists():
        console.print(f"Measure it: [bold]{command('measure', lab.number)}[/]")


# ---------------------------------------------------------------- red


def _open_holes(report: Report, console: Console) -> None:
    """Each hole that is not filled, in a line with its task."""
    for number, tests in report.todos.items():
        hole = report.lab.holes[number - 1]
        waiting = f"{tests} test{'s wait' if tests > 1 else ' waits'}" if tests else "later"
        if hole.broken:
            todo = f"TODO({number})"
            reasons = (o.todo.partition(": ")[2] for o in report.failed if o.todo.startswith(todo))
            waiting = next(reasons, "as it was given")
        verb = "MEND" if hole.broken else "TODO"
        if hole.broken and number != min(report.todos):  # one after the other
            console.print(f"[yellow]○[/] {verb}({number}) [bold]{hole.name}[/]")
            continue
        label = f"{verb}({number}) [bold]{hole.name}[/]: {escape(hole.task)}"
        say(console, f"[yellow]○[/] {label} [dim]({waiting})[/]", hang=2)


def _failures(report: Report, console: Console, *, every: bool) -> None:
    """Each cause in full once, the first ones; the other tests that fail by it in a line."""
    seen: list[Hashable] = []
    printed = False
    red = [outcome for outcome in report.failed if not outcome.todo]
    red.sort(key=lambda outcome: not report.causes.get(outcome.test))  # a named belief first
    if red and not every and any(hole.broken for hole in report.lab.holes):
        red = _first_to_mend(report, red, console)
    short: dict[tuple[str, str], list[str]] = {}  # (test, what is said of it) -> its cases
    for outcome in red:
        ids = report.causes.get(outcome.test, ())
        cause: Hashable = ids or (
            (outcome.where, outcome.error) if outcome.mine else holes_of(report.lab, outcome.test)
        )
        if not every and (cause in seen or len(seen) >= IN_FULL):
            same = "cause" if ids else "line of yours" if outcome.mine else ""
            name, _, case = outcome.sentence.partition(" (")
            known = f" [dim](the same {same})[/]" if same and cause in seen else ""
            short.setdefault((name, known), []).append(case.removesuffix(")"))
            continue
        seen.append(cause)
        _in_full(report.lab, outcome, console)
        for id in ids:
            belief = report.lab.misconception(id)
            say(console, f"    [bold]The cause[/] ({id}): {escape(belief.says)}")
            console.print(f"    Read {belief.read}")
        if outcome.printed.strip() and (every or not printed):
            printed = True
            _printed(outcome, console)
    for (name, same), cases in short.items():
        of = ", ".join(filter(None, cases))
        console.print(f"[red]✗[/] {escape(f'{name} ({of})' if of else name)}{same}")


def _first_to_mend(report: Report, red: list[Outcome], console: Console) -> list[Outcome]:
    """The failures of the first file only, of several to mend; what passes of its tests is told."""
    of = {outcome.test: hole_of(report.lab, outcome.test) for outcome in report.outcomes}
    first = min(of[outcome.test] for outcome in red)
    for outcome in report.outcomes:
        if of[outcome.test] == first and outcome.outcome == "passed" and "[" not in outcome.test:
            console.print(f"[green]✓[/] {escape(outcome.sentence)}")
    here = [outcome for outcome in red if of[outcome.test] == first]
    if more := len(red) - len(here):
        console.print(f"[dim]{more} tests of other files fail as well: one after the other[/]")
    return here


def _in_full(lab: Lab, outcome: Outcome, console: Console) -> None:
    console.print(f"[red]✗[/] {escape(outcome.sentence)}")
    message = outcome.message
    if outcome.mine or outcome.error != "AssertionError":
        message = f"{outcome.error}: {message or 'no message'}"
    for line in message.splitlines():
        console.print(f"    {escape(line)}")
    for name, text in (
        ("your line", outcome.line if outcome.mine else ""),
        ("the test", outcome.asserted),
        ("with", outcome.inputs),
        ("", _place(outcome.where)),
    ):
        if text:
            label = f"[dim]{name:<9}[/] " if name else ""
            console.print(f"    {label}{escape(text)}")
    _remark(lab, outcome.error, outcome.message, console)


def _remark(lab: Lab, error: str, message: str, console: Console) -> None:
    remark = REMARKS.get(error, "").format(memory_gb=lab.memory_gb)
    if error == "ValueError" and any(word in message for word in ("read-only", "not writ")):
        remark = READ_ONLY
    if remark:
        console.print(f"    {remark}")


def _printed(outcome: Outcome, console: Console) -> None:
    lines = outcome.printed.rstrip().splitlines()
    more = [f"… {len(lines) - LINES_PRINTED} lines more"] * (len(lines) > LINES_PRINTED)
    console.print("    [dim]your code printed[/]")
    for line in [*lines[:LINES_PRINTED], *more]:
        console.print(f"    [dim]│[/] {escape(line)}")


def _stopped(report: Report, whose: str, console: Console) -> None:
    console.print(f"[red]✗[/] lab {report.lab.number}{whose}: {escape(report.stopped)}")
    if report.where:
        console.print(f"    {escape(_place(report.where))}   {escape(report.line)}")
    error, _, message = report.stopped.partition(": ")
    _remark(report.lab, error, message, console)
    if report.inputs:
        console.print(f"    [dim]with[/] {escape(report.inputs)}")


def _place(where: str) -> str:
    path, _, line = where.rpartition(":")
    return f"{shown(path)}:{line}" if path else where
