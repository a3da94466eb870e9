"""What the learner has predicted before the labs: a file that only grows.

In:  questions (`questions.py`) and what was said. Out: `predictions.jsonl` in the learner's folder,
a line of JSON for each, and a `Said` for each question that was answered.

What was said after the lab had passed is kept and does not count: then the answer was known.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from labs.runner import workspace
from labs.runner.cut.catalogue import Lab
from labs.runner.questions import Question, questions
from labs.runner.words import command
from labs.runner.workspace import Progress


@dataclass(frozen=True)
class Said:
    """The last answer to a question that came in time, or else the last one."""

    question: Question
    said: float
    because: str
    date: str  # ISO 8601
    late: bool  # after the lab had passed

    @property
    def right(self) -> bool:
        return self.question.right(self.said)

    @property
    def factor_off(self) -> float | None:
        """How many times too large or too small a number was, at least 1; None for a choice."""
        if self.question.choices:
            return None
        if self.said == self.question.answer:
            return 1.0
        if self.said * self.question.answer <= 0:
            return math.inf
        return math.exp(abs(math.log(self.said / self.question.answer)))


def predictions_file() -> Path:
    return workspace.home() / "predictions.jsonl"


def say(question: Question, said: float, because: str, *, late: bool) -> None:
    """Write a prediction down, dated now."""
    path = predictions_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    event = {"date": workspace.now(), "lab": question.lab, "question": question.id, "said": said,
             "because": " ".join(because.split()), "late": late}  # fmt: skip
    with path.open("a", encoding="utf-8") as out:
        out.write(json.dumps(event, ensure_ascii=False) + "\n")


def said(asked: Sequence[Question]) -> list[Said]:
    """Answers to these questions, in the order they were given. Lines about others are skipped.

    Raises ValueError that names a line which cannot be read.
    """
    path, known = predictions_file(), {question.id: question for question in asked}
    found: dict[str, Said] = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    for number, line in enumerate(lines, start=1):
        try:
            event = json.loads(line)
            one = known.get(event["question"])
            before = found.get(event["question"])
            if one is None or (event["late"] and before is not None and not before.late):
                continue
            found.pop(one.id, None)  # the order is that of the last answer
            found[one.id] = Said(
                one, float(event["said"]), event["because"], event["date"], event["late"]
            )
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path}:{number} is no prediction ({error}): mend it, or move the file away"
            ) from error
    return list(found.values())


def better(answers: Sequence[Said]) -> tuple[float, float] | None:
    """Share that was right in the first and in the second half; None below eight answers."""
    if len(answers) < 8:
        return None
    half = len(answers) // 2
    first, second = answers[:half], answers[half:]
    return sum(s.right for s in first) / len(first), sum(s.right for s in second) / len(second)


def factor(answers: Sequence[Said]) -> float | None:
    """The median of how many times the numbers were off."""
    offs = [off for one in answers if (off := one.factor_off) is not None]
    return median(offs) if offs else None


def unanswered(lab: Lab, progress: Progress) -> int:
    """How many questions wait for an answer that would count."""
    asked = questions(lab)
    return 0 if workspace.solved(lab, progress) else len(asked) - len(said(asked))


def scored(lab: Lab) -> str:
    """One line for green; empty where nothing was asked."""
    asked = questions(lab)
    if not asked:
        return ""
    in_time = [one for one in said(asked) if not one.late]
    right = sum(one.right for one in in_time)
    score = f"{right} of {len(in_time)} predictions were right" if in_time else "The key"
    return f"{score}: {command('predict', lab.number)}"


def plot(answers: Sequence[Said], path: Path) -> None:
    """Draw each number's factor in the order in which it was predicted.

    Raises ValueError if no number was predicted in time.
    """
    from mini_engine.plots.canvas import BLACK, BLUE, PALE, canvas

    pairs = [(one, min(one.factor_off, 1000.0)) for one in answers if one.factor_off is not None]
    if not pairs:
        raise ValueError("no number was predicted before its lab had passed: nothing to draw")
    offs = [off for _, off in pairs]
    right = sum(one.right for one, _ in pairs)
    title = f"{right} of {len(pairs)} numbers were near enough"
    caption = "Each point: how many times too large or too small. Line: median of the last five."
    with canvas(path, (12, 6), title=title, caption=caption) as figure:
        axes = figure.subplots()
        places = range(1, len(offs) + 1)
        axes.axhspan(1, 2, color=PALE)
        axes.scatter(places, offs, color=BLUE, s=60)
        running = [median(offs[max(0, i - 5) : i]) for i in places]
        axes.plot(places, running, color=BLACK, linewidth=1.6)
        axes.set(yscale="log", ylim=(0.9, max(3.0, 1.3 * max(offs))), xlabel="prediction")
        axes.set_xticks(list(places), [f"lab {one.question.lab}" for one, _ in pairs], rotation=60)
        axes.set_ylabel("times off")
