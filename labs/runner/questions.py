"""What one predicts before a lab: reads and checks its `predict.toml`.

    [[question]]
    asks = "257 kernels of 4.2 µs, issued one by one by vLLM on an H200. How long is the step?"
    unit = "µs"
    answer = 10440.0
    near = 0.1                        # right is what lies within 10% of the answer
    compute = '''
    from mini_engine.step.hardware import load_spec
    from mini_engine.step.launch_model import eager_itl_us
    eager_itl_us(257, 4.2, load_spec("h200"))
    '''                               # the last line is the answer: a test computes it again
    because = "Each launch costs the CPU more than the kernel costs the GPU."
    from = ["course/01-why-the-gpu-waits.md#predict-before-you-run"]    # where it is asked, too

    [[question]]
    asks = "…"
    choices = ["the CPU", "the GPU"]  # in the place of unit and near
    answer = 1                        # counted from 1

`compute` may be left out where an answer is a choice.
"""

from __future__ import annotations

import hashlib
import tomllib
from dataclasses import dataclass
from typing import Any

from labs.runner.cut.catalogue import Lab

FIELDS = {"asks", "answer", "because", "unit", "near", "choices", "compute", "from"}


@dataclass(frozen=True)
class Question:
    """One question with its key."""

    lab: int
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

    @property
    def key(self) -> str:
        """The answer in words."""
        if self.choices:
            return self.choices[int(self.answer) - 1]
        return f"{self.answer:,.6g} {self.unit}".strip()

    def shown(self, said: float) -> str:
        """What somebody has said, in words."""
        return self.choices[int(said) - 1] if self.choices else f"{said:,.6g} {self.unit}".strip()

    def right(self, said: float) -> bool:
        if self.choices:
            return said == self.answer
        if self.answer == 0:
            return said == 0
        return abs(said / self.answer - 1) <= self.near

    def understood(self, words: str) -> float:
        """A number or a choice that somebody typed. ValueError says what is expected."""
        plain = words.strip().replace(",", "").replace("_", "").removesuffix(self.unit).strip()
        if self.choices:
            if plain.isdigit() and 1 <= int(plain) <= len(self.choices):
                return float(plain)
            raise ValueError(f"expected one of 1 to {len(self.choices)}, given {words.strip()!r}")
        try:
            value = float(plain.removesuffix("%") if self.unit == "%" else plain)
        except ValueError:
            value = float("nan")
        if not -1e300 < value < 1e300:
            raise ValueError(f"expected a number in {self.unit}, given {words.strip()!r}")
        return value


def questions(lab: Lab) -> list[Question]:
    """Those of a lab, in order; none if it has no predict.toml. ValueError names a bad field."""
    path = lab.folder / "predict.toml"
    if not path.exists():
        return []
    place = f"{lab.name}/predict.toml"
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))["question"]
        return [_question(lab, i, entry) for i, entry in enumerate(entries, start=1)]
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{place}: {error}") from error


def _question(lab: Lab, number: int, entry: dict[str, Any]) -> Question:
    if unknown := set(entry) - FIELDS:
        raise ValueError(f"question {number}: unknown field {', '.join(sorted(unknown))}")
    choices = tuple(entry.get("choices", ()))
    answer = float(entry["answer"])
    if choices and answer not in range(1, len(choices) + 1):
        raise ValueError(f"question {number}: answer {answer} is none of its choices")
    if not choices and not (entry.get("near", 0) > 0 and entry.get("compute")):
        raise ValueError(f"question {number}: a number needs `near` and `compute`")
    return Question(
        lab.number,
        number,
        entry["asks"],
        answer,
        entry["because"],
        entry.get("unit", ""),
        0.0 if choices else float(entry["near"]),
        choices,
        entry.get("compute", ""),
        tuple(entry.get("from", ())),
    )
