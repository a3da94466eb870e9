"""The mutation score of a lab: how many small mistakes in the reference its tests notice.

In:  a `Lab`. Out: a `Score`. The mutants are those of every hole (`mutants.py`); each is put in the
place of the engine's file and the lab's tests run until one fails.

A mutant that computes the same as the reference can't be noticed. It is listed, with the reason, in
the lab's `equivalent.toml`:

    [[equivalent]]
    hole = "crossover"                # the function
    change = "return max(1, …)  =>  return max(0, …)"     # as `./lab mutate` prints it
    reason = "why no test can see it"

An entry that names no mutant, or one that dies, is an error: the code has changed since.
"""

from __future__ import annotations

import random
import time
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

from labs.runner.checks.checking import Report, check_texts
from labs.runner.checks.warm import context
from labs.runner.cut.catalogue import Lab
from labs.runner.mistakes.mutants import mutants

BAR = 0.97  # of the mutants that are not equivalent must die
LEAST_S = 20.0  # for all tests on one mutant; an endless loop is a mistake that is noticed


@dataclass(frozen=True)
class LabMutant:
    """A mistake in a function of a hole: the learner's file that it is in, and its text."""

    hole: str
    file: str
    change: str
    text: str


@dataclass
class Score:
    """What became of the mutants of one lab. `wrong` names entries of equivalent.toml."""

    lab: Lab
    killed: list[LabMutant] = field(default_factory=list)
    equivalent: list[LabMutant] = field(default_factory=list)  # listed, and alive as they should be
    alive: list[LabMutant] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def share(self) -> float:
        """Of the mutants that are not equivalent, those that die."""
        counted = len(self.killed) + len(self.alive)
        return len(self.killed) / counted if counted else 1.0

    @property
    def good(self) -> bool:
        return self.share >= BAR and not self.wrong

    def as_json(self) -> dict[str, object]:
        return {
            "lab": self.lab.name,
            "mutants": len(self.killed) + len(self.alive) + len(self.equivalent),
            "killed": len(self.killed),
            "equivalent": len(self.equivalent),
            "share": self.share,
            "alive": [{"hole": m.hole, "change": m.change} for m in self.alive],
            "wrong_entries": self.wrong,
            "seconds": round(self.seconds, 1),
        }


def all_mutants(lab: Lab, hole: int | None = None) -> list[LabMutant]:
    """The mutants of every hole, or of the one with this number."""
    texts = lab.reference()
    return [
        LabMutant(name, one.file, mutant.change, mutant.text)
        for one, names in lab.covered()
        if hole in (None, one.number)
        for name in names
        for mutant in mutants(texts[one.file], name)
    ]


def fixed_sample(lab: Lab, count: int) -> list[LabMutant]:
    """The same few mutants at every call, as long as the code stays."""
    found = all_mutants(lab)
    return random.Random(lab.number).sample(found, min(count, len(found)))


def equivalents(lab: Lab) -> set[tuple[str, str]]:
    """(function, change) of each entry. Raises ValueError for one without one of the fields."""
    path = lab.folder / "equivalent.toml"
    entries = tomllib.loads(path.read_text(encoding="utf-8"))["equivalent"] if path.exists() else []
    for entry in entries:
        if set(entry) != {"hole", "change", "reason"} or len(entry["reason"]) < 20:
            raise ValueError(
                f"{lab.name}/equivalent.toml: an entry has hole, change and a reason, given {entry}"
            )
    return {(entry["hole"], entry["change"]) for entry in entries}


def stale_entries(lab: Lab, every: list[LabMutant]) -> list[str]:
    """Entries of equivalent.toml whose mutant is not (any more) among all those of the lab."""
    gone = equivalents(lab) - {(m.hole, m.change) for m in every}
    return [f"no such mutant: {hole}: {change}" for hole, change in sorted(gone)]


def run_mutant(lab: Lab, mutant: LabMutant, limit_s: float | None = None) -> Report:
    """The lab's tests on one mutant, until the first fails."""
    texts = lab.reference() | {mutant.file: mutant.text}
    limited = replace(lab, limit_s=min(lab.limit_s, limit_s or lab.limit_s))
    return check_texts(limited, texts, first=True, context=context())


def score(
    lab: Lab,
    chosen: list[LabMutant] | None = None,
    *,
    jobs: int = 2,
    tick: Callable[[], None] = lambda: None,
) -> Score:
    """Run the chosen mutants (all by default), `jobs` at a time. `tick()` after each.

    Raises ValueError if the reference itself fails: then nothing would be shown.
    """
    begun = time.monotonic()
    whole = check_texts(lab, lab.reference(), context=context())
    if not whole.passed:
        raise ValueError(f"lab {lab.number}: the reference fails: {whole.stopped or whole.failed}")
    limit_s = max(LEAST_S, 6 * (time.monotonic() - begun))
    listed, every = equivalents(lab), all_mutants(lab)
    chosen = every if chosen is None else chosen
    result = Score(lab, wrong=stale_entries(lab, every))
    with ThreadPoolExecutor(jobs) as workers:
        runs = workers.map(lambda m: run_mutant(lab, m, limit_s), chosen)
        for mutant, run in zip(chosen, runs, strict=True):
            tick()
            entry = (mutant.hole, mutant.change) in listed
            if entry and not run.passed:
                result.wrong.append(f"dies, so not equivalent: {mutant.hole}: {mutant.change}")
            alive = result.equivalent if entry else result.alive
            (alive if run.passed else result.killed).append(mutant)
    result.seconds = time.monotonic() - begun
    return result
