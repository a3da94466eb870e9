"""`./lab predict` and `./lab ledger`: commit to an answer before a lab, see the key after it.

A lab asks the questions of its `predict.toml`:

    [[question]]
    asks = "257 kernels of 4.2 µs, issued one by one by vLLM on an H200. How long is the step?"
    unit = "µs"
    answer = 10440.0
    near = 0.1                        # right is what lies within 10% of the answer
    compute = '''
    from mini_engine.step.cards import load_spec
    from mini_engine.step.launch_model import eager_itl_us
    eager_itl_us(257, 4.2, load_spec("h200"))
    '''                               # the last line is the answer: a test computes it again
    because = "Each launch costs the CPU more than the kernel costs the GPU."
    from = ["course/04-two-clocks.md#predict-before-you-run"]    # where it is asked, too

    [[question]]
    asks = "…"
    choices = ["the CPU", "the GPU"]  # in the place of unit and near; `compute` may be left out
    answer = 1                        # counted from 1

Answers go to `predictions.jsonl` in the learner's folder, a file that only grows, a line each; the
last answer to a question counts. Once a lab has passed its key is shown, and no answer is taken.
"""

from __future__ import annotations

import hashlib
import json
import math
import sys
import tomllib
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.prompt import Prompt
from rich.table import Table

from labs.runner import Done, command, workspace
from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from labs.runner.cut.source import shown
from labs.runner.prose import say
from labs.runner.workspace import FIRST, Progress


@dataclass(frozen=True)
class Question:
    """One question with its key."""

    lab: str
    number: int  # from 1, within its lab
    asks: str
    answer: float
    because: str
    unit: str = ""
    near: float = 0.0  # relative; 0 for a choice
    choices: tuple[str, ...] = ()
    compute: str = ""
    asked_in: tuple[str, ...] = ()  # documents, with the anchor

    @property
    def id(self) -> str:
        """Stays the same as long as what is asked does."""
        return hashlib.sha256(self.asks.encode()).hexdigest()[:10]

    def in_words(self, value: float) -> str:
        """The key, or an answer, as one reads it."""
        return self.choices[int(value) - 1] if self.choices else f"{value:,.6g} {self.unit}".strip()

    def right(self, given: float) -> bool:
        return abs(given - self.answer) <= self.near * abs(self.answer)

    def parse(self, words: str) -> float:
        """A number or a choice that somebody typed. ValueError says what is expected."""
        plain = words.strip().replace(",", "").replace("_", "").removesuffix(self.unit).strip()
        if self.choices:
            if plain.isdigit() and 1 <= int(plain) <= len(self.choices):
                return float(plain)
            raise ValueError(f"expected one of 1 to {len(self.choices)}, given {words.strip()!r}")
        try:
            value = float(plain)
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            raise ValueError(f"expected a number in {self.unit}, given {words.strip()!r}")
        return value


@dataclass(frozen=True)
class Answer:
    """The last answer to a question."""

    question: Question
    value: float
    because: str
    date: str  # ISO 8601

    @property
    def right(self) -> bool:
        return self.question.right(self.value)

    @property
    def factor_off(self) -> float:
        """How many times too large or too small a number was, at least 1."""
        small, large = sorted((self.value, self.question.answer))
        return 1.0 if small == large else large / small if small > 0 else math.inf


# ---------------------------------------------------------------- questions and answers as files


def questions(lab: Lab) -> list[Question]:
    """Those of a lab, in order. ValueError names a bad field."""
    try:
        text = (lab.folder / "predict.toml").read_text(encoding="utf-8")
        entries = tomllib.loads(text)["question"]
        return [_question(lab, i, entry) for i, entry in enumerate(entries, start=1)]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{lab.name}/predict.toml: {error}") from error


def _question(lab: Lab, number: int, entry: dict[str, Any]) -> Question:
    asked_in, choices = tuple(entry.pop("from", ())), tuple(entry.pop("choices", ()))
    return Question(lab.number, number, choices=choices, asked_in=asked_in, **entry)


def record(question: Question, value: float, because: str) -> None:
    """Write an answer down, dated now."""
    path = workspace.home() / "predictions.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    event = {"date": workspace.now(), "lab": question.lab, "question": question.id, "said": value,
             "because": " ".join(because.split())}  # fmt: skip
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(event, ensure_ascii=False) + "\n")


def answers(asked: Sequence[Question]) -> list[Answer]:
    """Answers to these questions, in the order they were given. Lines about others are skipped.

    Raises ValueError that names a line which cannot be read.
    """
    path = workspace.home() / "predictions.jsonl"
    known = {question.id: question for question in asked}
    found: dict[str, Answer] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            if question := known.get(event["question"]):
                found.pop(question.id, None)  # the order is that of the last answer
                value, because, date = float(event["said"]), event["because"], event["date"]
                found[question.id] = Answer(question, value, because, date)
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number} is no prediction ({error}): mend it, or move the file away"
            ) from error
    return list(found.values())


def unanswered(lab: Lab, progress: Progress) -> int:
    """How many questions wait for an answer that would count."""
    asked = questions(lab)
    return 0 if workspace.solved(lab, progress) else len(asked) - len(answers(asked))


def score_line(lab: Lab) -> str:
    """One line for green."""
    given = answers(questions(lab))
    right = sum(one.right for one in given)
    score = f"{right} of {len(given)} predictions were right" if given else "Questions and key"
    return f"{score}: {command('predict', lab.number)}"


def missed(lab: Lab) -> list[str]:
    """Each prediction that was wrong beside its key, for green."""
    return [
        f"{one.question.number}. you said {escape(one.question.in_words(one.value))}; it is "
        f"{escape(one.question.in_words(one.question.answer))}. {escape(one.question.because)}"
        for one in answers(questions(lab)) if not one.right
    ]  # fmt: skip


# ---------------------------------------------------------------- predict


def run_predict(args: Namespace, console: Console) -> Done:
    """Ask all or one (`--question K`), or write one answer down (`--say X`); after green, show the
    key."""
    progress = workspace.load_progress()
    lab = lab_number(args.number or progress.current or FIRST)
    asked, passed = questions(lab), bool(progress.of(lab).passed)
    if args.say is not None and args.question is None:
        raise ValueError("--say ANSWER needs its question: --question K")
    if args.question is not None:
        if not 1 <= args.question <= len(asked):
            raise ValueError(f"lab {lab.number} asks 1 to {len(asked)}, given {args.question}")
        asked = asked[args.question - 1 :][:1]
    if args.say is not None:
        if passed:
            raise ValueError(f"lab {lab.number} has passed, and its key is known")
        question = asked[0]
        record(question, question.parse(args.say), args.because)
    elif not passed and sys.stdin.isatty() and console.is_terminal:
        _ask(asked, console)
    return _show_answers(lab, asked, passed, console)


def _ask(asked: list[Question], console: Console) -> None:
    """One after the other; an empty answer leaves a question open."""
    known = {one.question.id for one in answers(asked)}
    for question in [question for question in asked if question.id not in known]:
        _show_question(question, console)
        while words := Prompt.ask("your answer", console=console, default="", show_default=False):
            try:
                value = question.parse(words)
            except ValueError as error:
                console.print(f"[red]{escape(str(error))}[/]")
                continue
            because = Prompt.ask("because", console=console, default="", show_default=False)
            record(question, value, because)
            break


def _show_question(question: Question, console: Console) -> None:
    unit = f" [dim]({question.unit})[/]" if question.unit and not question.choices else ""
    say(console, f"\n[bold]{question.number}.[/] {escape(question.asks)}{unit}", hang=3)
    for i, choice in enumerate(question.choices, start=1):
        console.print(f"   {i}  {escape(choice)}")


def _show_answers(lab: Lab, asked: list[Question], passed: bool, console: Console) -> Done:
    given, result = {one.question.id: one for one in answers(asked)}, []
    for question in asked:
        one = given.get(question.id)
        _show_question(question, console)
        if one is None:
            how = command("predict", lab.number, "--question", question.number, "--say")
            console.print("   not answered" + ("" if passed else f": {how} …"))
        else:
            reason = f", because {escape(one.because)}" if one.because else ""
            words = escape(question.in_words(one.value))
            console.print(f"   you said [bold]{words}[/]{reason}")
        if passed:
            sign = "" if one is None else "[green]✓[/] " if one.right else "[red]✗[/] "
            key = escape(question.in_words(question.answer))
            say(console, f"   {sign}the key: [bold]{key}[/]. {escape(question.because)}")
        result.append(
            {"question": question.asks, "number": question.number, "unit": question.unit,
             "choices": list(question.choices), "said": one and one.value,
             "answer": question.answer if passed else None,
             "right": one.right if passed and one else None}
        )  # fmt: skip
    if not passed:
        console.print(f"\nThe key comes when lab {lab.number} has passed.")
    return Done(result)


# ---------------------------------------------------------------- ledger


def run_ledger(args: Namespace, console: Console) -> Done:
    """How good the predictions were, lab by lab, and whether they got better."""
    progress, labs = workspace.load_progress(), all_labs()
    scored = [lab for lab in labs if progress.of(lab).passed]
    waiting = [one for lab in labs if lab not in scored for one in answers(questions(lab))]
    given = answers([one for lab in scored for one in questions(lab)])
    half = len(given) // 2 if len(given) >= 8 else 0  # fewer say nothing about getting better
    halves = [_share_right(given[:half]), _share_right(given[half:])] if half else [None, None]
    if given:
        console.print(_table(scored, given))
        right = sum(one.right for one in given)
        console.print(f"\n{right} of {len(given)} predictions were right.")
    else:
        console.print(f"No prediction has been scored yet. Begin with {command('predict', FIRST)}.")
    if waiting:
        console.print(f"{len(waiting)} more wait for their labs to pass.")
    if half:
        console.print(f"Right in the first half: {halves[0]:.0%}, in the second: {halves[1]:.0%}.")
    if not args.json:
        _measured(console)
    result = {
        "predictions": [
            {"lab": one.question.lab, "question": one.question.asks, "said": one.value,
             "answer": one.question.answer, "unit": one.question.unit, "right": one.right,
             "because": one.because, "date": one.date}
            for one in given
        ],
        "waiting": len(waiting),
        "right_first_half": halves[0],
        "right_second_half": halves[1],
        "median_factor_off": _median_factor(given),
    }  # fmt: skip
    return Done(result)


def _table(scored: list[Lab], given: list[Answer]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("lab", "asked", "predicted", "right", "numbers off by"):
        table.add_column(name, justify="left" if name == "lab" else "right")
    for lab in scored:
        mine = [one for one in given if one.question.lab == lab.number]
        counts = len(questions(lab)), len(mine), sum(one.right for one in mine)
        off = _median_factor(mine)
        last = "" if off is None else f"x{off:.2f}"
        table.add_row(f"{lab.number:>3} {lab.title}", *map(str, counts), last)
    return table


def _share_right(given: Sequence[Answer]) -> float:
    return sum(one.right for one in given) / len(given)


def _median_factor(given: Sequence[Answer]) -> float | None:
    """The median of how many times the numbers were off."""
    offs = [one.factor_off for one in given if not one.question.choices]
    return median(offs) if offs else None


def _measured(console: Console) -> None:
    """Predictions of times, closed by measurements on a GPU (labs 7b, 14, 15b and 16)."""
    from labs.measuring import ledger

    if entries := ledger.entries():
        console.print("\n[bold]Times, predicted and measured[/]")
        console.print(ledger.table(entries))
        picture = workspace.home() / "ledger.png"
        try:
            ledger.plot(entries, picture)
            console.print(f"\npicture: {shown(picture)}")
        except ValueError as error:
            console.print(f"\nno picture: {error}")
