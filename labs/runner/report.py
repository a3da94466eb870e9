"""What a check prints: open holes, then each cause of failure once, with the inputs that failed.

In:  a `Report` and a console. Out: text for people, or the same as JSON.
"""

from __future__ import annotations

import ast
import contextlib
from collections.abc import Hashable
from typing import Any

from rich.console import Console
from rich.markup import escape

from labs.runner import workspace
from labs.runner.checks.checking import Outcome, Report
from labs.runner.cut.catalogue import Lab, all_labs
from labs.runner.cut.cutter import functions
from labs.runner.cut.source import shown
from labs.runner.play import of_the_engine
from labs.runner.show import next_step
from labs.runner.words import command
from labs.runner.workspace import Progress

IN_FULL = 3  # causes that are shown with all that is known; the others in a line
LINES_PRINTED = 20
READ_ONLY = ("read-only", "not writeable", "not writable")


def show_report(
    report: Report, console: Console, *, whose: str, every: bool, progress: Progress
) -> None:
    """The outcome of a check. With `every`, each failing test in full."""
    lab = report.lab
    whose = "" if whose == "mine" else f" ({whose})"
    passed = sum(o.outcome == "passed" for o in report.outcomes)
    counted = f"{passed} of {len(report.outcomes)} tests pass"
    for path, where in report.wrote:
        console.print(
            f"[yellow]![/] your code wrote {escape(shown(path))} ({escape(_place(where))}): "
            "a check should leave the repository as it is"
        )
    if report.stopped:
        _stopped(report, whose, console)
    for outcome in report.outcomes:
        if outcome.outcome == "skipped":
            console.print(f"[yellow]–[/] {escape(outcome.sentence)}: {escape(outcome.reason)}")
    if report.passed:
        _green(lab, whose, counted, console, progress)
        return
    for number, tests in report.todos.items() if not report.stopped else ():
        hole = lab.holes[number - 1]
        waiting = f"{tests} test{'s wait' if tests > 1 else ' waits'}" if tests else "later"
        if hole.broken:
            reasons = (o.todo.partition(": ")[2] for o in report.failed if _of(o, number))
            waiting = next(reasons, "as it was given")
        verb = "MEND" if hole.broken else "TODO"
        label = f"{verb}({number}) [bold]{hole.name}[/]: {escape(hole.task)}"
        console.print(f"[yellow]○[/] {label} [dim]({waiting})[/]")
    _failures(report, console, every=every)
    if not report.stopped:
        console.print(f"\nlab {lab.number}{whose}: {counted}.", end="")
        console.print(f" Stuck: [bold]{command('hint')}[/]" if not whose else "")
    if not whose and workspace.source_changed(lab, progress):
        console.print(
            f"[dim]The engine's file has changed since yours was cut. If a test asks for something "
            f"that your file has no place for: {command('update', lab.number)} (keeps a backup).[/]"
        )


def as_json(report: Report) -> dict[str, Any]:
    """A report as JSON; `causes` are the misconceptions that explain a failure."""
    named = report.diagnosis.named
    return {
        "lab": report.lab.name,
        "passed": report.passed,
        "stopped": report.stopped,
        "where": report.where,
        "wrote": [{"file": path, "where": where} for path, where in report.wrote],
        "todos": report.todos,
        "tests": [
            {"test": o.test, "outcome": o.outcome, "catches": list(o.catches), "todo": o.todo,
             "causes": list(named.get(o.test, ())), "error": o.error, "message": o.message,
             "asserted": o.asserted, "inputs": o.inputs, "got": o.got, "expected": o.expected,
             "printed": o.printed, "where": o.where}
            for o in report.outcomes
        ],
    }  # fmt: skip


def in_order(report: Report) -> list[Outcome]:
    """The failures that are no TODO, in the order of the tests' file.

    It goes hole by hole, and from the parts of one to what several do together.
    """
    places: dict[str, int] = {}
    with contextlib.suppress(OSError, SyntaxError):
        names = functions(report.lab.test_file.read_text())
        places = {name: place for place, name in enumerate(names)}

    def place(outcome: Outcome) -> int:
        return places.get(outcome.test.partition("[")[0], len(places))

    return sorted((o for o in report.failed if not o.todo), key=place)


def hole_in_doubt(report: Report) -> int:
    """Number of the hole that the first failure points at; 0 if all are well or none is named.

    A test may name several: what the earlier ones do by themselves has been tested before it.
    """
    first = next((o.test.partition("[")[0] for o in in_order(report)), "")
    return max(_holes_of_tests(report.lab).get(first, ()), default=0)


# ---------------------------------------------------------------- red


def _of(outcome: Outcome, number: int) -> bool:
    """Does this test wait for the hole of this number?"""
    return outcome.todo.startswith(f"TODO({number})")


def _failures(report: Report, console: Console, *, every: bool) -> None:
    """Each cause in full once, the first ones; the other tests that fail by it in a line."""
    holes = _holes_of_tests(report.lab)
    told: list[Hashable] = []
    printed = False
    for outcome in in_order(report):
        cause = _cause(report, outcome, holes)
        if not every and (cause in told or len(told) >= IN_FULL):
            same = " [dim](the same cause)[/]" if cause in told and _known(report, outcome) else ""
            console.print(f"[red]✗[/] {escape(outcome.sentence)}{same}")
            continue
        told.append(cause)
        _in_full(report, outcome, console)
        if outcome.printed.strip() and (every or not printed):
            printed = True
            _printed(outcome, console)


def _known(report: Report, outcome: Outcome) -> bool:
    return outcome.mine or bool(report.diagnosis.named.get(outcome.test))


def _cause(report: Report, outcome: Outcome, holes: dict[str, list[int]]) -> Hashable:
    """What two failures share if they come from one mistake, as far as that can be known."""
    if ids := report.diagnosis.named.get(outcome.test):
        return ids
    if outcome.mine:
        return outcome.where, outcome.error
    return tuple(holes.get(outcome.test.partition("[")[0], ()))


def _in_full(report: Report, outcome: Outcome, console: Console) -> None:
    def tell(name: str, text: str) -> None:
        if text:
            console.print(f"    [dim]{name:<9}[/] {escape(text)}")

    console.print(f"[red]✗[/] {escape(outcome.sentence)}")
    if outcome.mine or outcome.error != "AssertionError":
        error = f"{outcome.error}: {outcome.message or 'no message'}"
        console.print("\n".join(f"    {escape(line)}" for line in error.splitlines()))
    elif outcome.message:
        console.print("\n".join(f"    {escape(line)}" for line in outcome.message.splitlines()))
    if outcome.mine:
        tell("your line", outcome.line)
    tell("the test", outcome.asserted)
    tell("with", outcome.inputs)
    tell("got", outcome.got)
    tell("expected", outcome.expected)
    console.print(f"    [dim]{escape(_place(outcome.where))}[/]")
    if hint := _hint(report.lab, outcome.error, outcome.message):
        console.print(f"    {hint}")
    _diagnosed(report, outcome, console)


def _diagnosed(report: Report, outcome: Outcome, console: Console) -> None:
    """The misconception whose wrong answer fails in the same way, or that there is none."""
    found = report.diagnosis
    if outcome.test not in found.named:
        return
    for id in found.named[outcome.test]:
        belief = report.lab.misconception(id)
        console.print(f"    [bold]The cause[/] ({id}): {escape(belief.says)}")
        console.print(f"    Read {belief.read}")
    if not found.named[outcome.test]:
        left = found.known - found.tried
        more = f" ({left} were left out for want of time)" if left else ""
        console.print(f"    None of the known misconceptions gives this result{more}.")


def _hint(lab: Lab, error: str, message: str) -> str:
    """A sentence on an error whose own words say too little."""
    if error == "MemoryError":
        return f"This lab may use {lab.memory_gb:g} GB: how much does your code allocate?"
    if error == "ValueError" and any(word in message for word in READ_ONLY):
        return "The tests give their inputs read-only: write into an array of your own, or a copy."
    if error == "SystemExit":
        return "Code under test returns or raises: it does not end the process."
    if error == "RecursionError":
        return "Does a function call itself without an end?"
    return ""


def _printed(outcome: Outcome, console: Console) -> None:
    lines = outcome.printed.rstrip().splitlines()
    console.print("    [dim]your code printed[/]")
    for line in lines[:LINES_PRINTED]:
        console.print(f"    [dim]│[/] {escape(line)}")
    if len(lines) > LINES_PRINTED:
        console.print(f"    [dim]│ … {len(lines) - LINES_PRINTED} lines more[/]")


def _stopped(report: Report, whose: str, console: Console) -> None:
    console.print(f"[red]✗[/] lab {report.lab.number}{whose}: {escape(report.stopped)}")
    if report.where:
        line = f"   {report.line}" if report.line else ""
        console.print(f"    {escape(_place(report.where))}{escape(line)}")
    if hint := _hint(report.lab, *report.stopped.partition(": ")[::2]):
        console.print(f"    {hint}")
    if report.inputs:
        console.print(f"    [dim]with[/] {escape(report.inputs)}")


def _place(where: str) -> str:
    path, _, line = where.rpartition(":")
    return f"{shown(path)}:{line}" if path else where


def _holes_of_tests(lab: Lab) -> dict[str, list[int]]:
    """Test -> numbers of the holes that its own text names, or else that of its helpers."""
    last = {hole.name.rpartition(".")[2]: hole.number for hole in lab.holes if not hole.broken}
    with contextlib.suppress(OSError, SyntaxError):
        text = lab.test_file.read_text()
        names = {
            name: {getattr(n, "id", "") or getattr(n, "attr", "") for n in ast.walk(node)}
            for name, node in functions(text).items()
        }
        found = {}
        for name, own in names.items():
            if not own & last.keys():
                own = own.union(*(names[other] for other in own & names.keys()))
            found[name] = sorted(last[hole] for hole in own & last.keys())
        return found
    return {}


# ---------------------------------------------------------------- green


def _green(lab: Lab, whose: str, counted: str, console: Console, progress: Progress) -> None:
    console.print(f"[green]✓[/] [bold]lab {lab.number}: {lab.title}[/]{whose}: {counted}")
    if whose:
        return
    console.print(f"\nYou have shown: {escape(lab.proves)}")
    if (lab.folder / "measure.py").exists():
        console.print(f"\nMeasure it: [bold]{command('measure', lab.number)}[/]")
    if of_the_engine(lab):
        console.print(f"\nYour own code in the engine: [bold]{command('demo')}[/]")
    console.print(next_step(all_labs(), progress))
