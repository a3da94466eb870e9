"""`labs predict` and `labs ledger`: commit to an answer before a lab, see the key after it."""

from __future__ import annotations

import sys
from argparse import Namespace
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt
from rich.table import Table

from labs.runner import workspace
from labs.runner.commands import Done, chosen_lab
from labs.runner.cut.catalogue import Lab, all_labs
from labs.runner.predictions import Said, better, factor, plot, predictions_file, said, say
from labs.runner.questions import Question, questions
from labs.runner.words import command, from_here


def run_predict(args: Namespace, console: Console) -> Done:
    """Ask, or with `--question K --say X` write one down; after green, show the key."""
    progress = workspace.load_progress()
    lab = chosen_lab(args, progress)
    asked, passed = questions(lab), _key_was_shown(lab, progress)
    if not asked:
        raise ValueError(f"lab {lab.number} asks for no predictions")
    if (args.question is None) != (args.say is None):
        raise ValueError("--question K and --say ANSWER belong together")
    if args.because and args.say is None:
        raise ValueError("--because is the reason of an answer: give --question K and --say, too")
    if args.question is not None:
        if not 1 <= args.question <= len(asked):
            raise ValueError(f"lab {lab.number} asks 1 to {len(asked)}, given {args.question}")
        question = asked[args.question - 1]
        say(question, question.understood(args.say), args.because, late=passed)
        later = "" if passed else " The key comes after green."
        console.print(f"Written down for question {question.number}.{later}")
    elif not passed and sys.stdin.isatty() and console.is_terminal:
        _ask(asked, console)
    return _tell(lab, asked, passed, console)


def run_ledger(args: Namespace, console: Console) -> Done:
    """How good the predictions were, lab by lab, and whether they got better."""
    progress = workspace.load_progress()
    scored, waiting = list[Lab](), list[Said]()
    for lab in all_labs():
        if _key_was_shown(lab, progress):
            scored.append(lab)
        else:
            waiting += said(questions(lab))
    answers = said([one for lab in scored for one in questions(lab)])
    in_time = [one for one in answers if not one.late]
    _ledger(scored, in_time, console)
    if waiting:
        console.print(f"{len(waiting)} more wait for their labs to pass.")
    halves = better(in_time)
    if halves:
        console.print(f"Right in the first half: {halves[0]:.0%}, in the second: {halves[1]:.0%}.")
    picture = workspace.home() / "predictions.png"
    if in_time and not args.json:
        try:
            plot(in_time, picture)
            console.print(f"picture: {from_here(picture)}")
        except ValueError as error:
            console.print(f"no picture: {error}")
    if not args.json:
        _measured(console)
    return Done(
        {
            "predictions": [_as_json(one) for one in in_time],
            "waiting": len(waiting),
            "right_first_half": halves[0] if halves else None,
            "right_second_half": halves[1] if halves else None,
            "median_factor_off": factor(in_time),
        }
    )


# ---------------------------------------------------------------- parts


def _key_was_shown(lab: Lab, progress: workspace.Progress) -> bool:
    """Has the lab passed, also if it fails now? From then on its answers are scored."""
    return bool(progress.of(lab).passed)


def _ask(asked: list[Question], console: Console) -> None:
    """One after the other; an empty answer leaves a question open."""
    known = {one.question.id for one in said(asked)}
    for question in asked:
        if question.id in known:
            continue
        _show_question(question, console)
        while True:
            words = Prompt.ask("your answer", console=console, default="", show_default=False)
            if not words.strip():
                break
            try:
                value = question.understood(words)
            except ValueError as error:
                console.print(f"[red]{escape(str(error))}[/]")
                continue
            because = Prompt.ask("because", console=console, default="", show_default=False)
            say(question, value, because, late=False)
            break


def _show_question(question: Question, console: Console) -> None:
    unit = f" [dim]({question.unit})[/]" if question.unit and not question.choices else ""
    console.print(f"\n[bold]{question.number}.[/] {escape(question.asks)}{unit}")
    for i, choice in enumerate(question.choices, start=1):
        console.print(f"   {i}  {escape(choice)}")


def _tell(lab: Lab, asked: list[Question], passed: bool, console: Console) -> Done:
    answers = {one.question.id: one for one in said(asked)}
    for question in asked:
        one = answers.get(question.id)
        _show_question(question, console)
        if one is None:
            how = command("predict", lab.number, "--question", question.number, "--say")
            console.print(f"   not answered: {how} …" if not passed else "   not answered")
        else:
            late = " [dim](after the lab, so it does not count)[/]" if one.late else ""
            reason = f", because {escape(one.because)}" if one.because else ""
            console.print(f"   you said [bold]{escape(question.shown(one.said))}[/]{reason}{late}")
        if passed:
            sign = "" if one is None else "[green]✓[/] " if one.right else "[red]✗[/] "
            console.print(f"   {sign}the key: [bold]{escape(question.key)}[/]. "
                          f"{escape(question.because)}")  # fmt: skip
    if not passed:
        console.print(f"\nThe key comes when lab {lab.number} has passed.")
    result = [
        {"question": q.asks, "number": q.number, "unit": q.unit, "choices": list(q.choices),
         "said": answers[q.id].said if q.id in answers else None,
         "answer": q.answer if passed else None,
         "right": answers[q.id].right if passed and q.id in answers else None}
        for q in asked
    ]  # fmt: skip
    return Done(result)


def _ledger(scored: list[Lab], in_time: list[Said], console: Console) -> None:
    if not in_time:
        console.print(
            f"No prediction has been scored yet. Begin with {command('predict', 1)}, "
            "before you solve the lab."
        )
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lab", "asked", "predicted", "right", "numbers off by"):
        table.add_column(name, justify="left" if name == "lab" else "right")
    for lab in scored:
        mine = [one for one in in_time if one.question.lab == lab.number]
        off = factor(mine)
        table.add_row(
            f"{lab.number:>2} {lab.title}",
            str(len(questions(lab))),
            str(len(mine)),
            str(sum(one.right for one in mine)),
            "" if off is None else f"x{off:.2f}",
        )
    console.print(table)
    right = sum(one.right for one in in_time)
    console.print(
        f"\n{right} of {len(in_time)} predictions were right ({predictions_file().name})."
    )


def _measured(console: Console) -> None:
    """Predictions of times, closed by measurements on a GPU (labs 14, 16, 17 and 20)."""
    from labs.measuring import ledger

    entries = ledger.entries()
    if not entries:
        return
    console.print("\n[bold]Times, predicted and measured[/]")
    console.print(ledger.table(entries))
    picture = workspace.home() / "ledger.png"
    try:
        ledger.plot(entries, picture)
        console.print(f"\npicture: {from_here(picture)}")
    except ValueError as error:
        console.print(f"\nno picture: {error}")


def _as_json(one: Said) -> dict[str, Any]:
    return {
        "lab": one.question.lab,
        "question": one.question.asks,
        "said": one.said,
        "answer": one.question.answer,
        "unit": one.question.unit,
        "right": one.right,
        "because": one.because,
        "date": one.date,
    }
