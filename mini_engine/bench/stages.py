"""A long run in stages: each has a deadline, and its result is on disk before the next one begins.

In:  a folder, and `Stage`s: commands of this Python and the seconds that they may take. Out: after
     every stage `run.json` in the folder, whole; beside it what the commands write, and what they
     print, in NAME.txt.

    for outcome in run(folder, stages, identity, seconds=540): ...

A run may be cut at any moment, between two stages or in the middle of one, by Ctrl-C, by a kill or
because the machine is taken away; the same call goes on. A stage that is done is not run again. One
that was cut runs again, with what its commands had written still in the folder: a benchmark goes on
with --resume. One that failed is tried again after those that have not run yet. Another machine may
go on if it is of the same kind, as `identity` tells. No torch.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import IO, Any

from mini_engine.files import read_object, write_whole

DONE, FAILED, CUT, WAITING = "done", "failed", "cut", "not run"
LEAST_SECONDS = 5.0  # what is left of a run's time, below which no stage begins
GRACE_SECONDS = 5.0  # between asking a command to end and ending it
STATE = "run.json"


@dataclass(frozen=True)
class Stage:
    """`commands`, given the folder: lists of words behind `python`, run one after the other."""

    name: str
    seconds: float
    teaches: str  # one line
    commands: Callable[[Path], Sequence[Sequence[str]]]


@dataclass(frozen=True)
class Outcome:
    """What became of a stage."""

    stage: str
    status: str  # DONE | FAILED | CUT | WAITING
    seconds: float = 0.0  # all attempts together
    date: str = ""
    note: str = ""  # of a stage that is not done: why, in one line

    def told(self) -> dict[str, Any]:
        """For `--json`, where a time's unit stands in its name."""
        fields = asdict(self)
        return {"stage": self.stage, "took_s": fields.pop("seconds"), **fields}


@dataclass(frozen=True)
class State:
    """The file `run.json`."""

    identity: Mapping[str, Any]
    outcomes: Mapping[str, Outcome]


def read_state(folder: Path) -> State | None:
    """None where no run has begun. ValueError names the file and what is wrong with it."""
    path = folder / STATE
    if not path.exists():
        return None
    data: Any = read_object(path)
    try:
        stages = {name: Outcome(**one) for name, one in data["stages"].items()}
        return State(dict(data["identity"]), stages)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(
            f"{path}: no state of a run ({error}): move the folder away, or give another one"
        ) from None


def run(
    folder: Path,
    stages: Sequence[Stage],
    identity: Mapping[str, Any],
    seconds: float,
    begins: Callable[[Stage, float], None] = lambda stage, seconds: None,
) -> Iterator[Outcome]:
    """Yield the outcome of each stage that had to run, once it is on disk; end after `seconds`.
    `begins` is told of a stage, and of the seconds that it has, before it runs.

    Raises ValueError where the folder holds a run on another kind of machine, KeyboardInterrupt
    after Ctrl-C or SIGTERM, when the stage has been ended and entered as cut.
    """
    state = read_state(folder) or State(identity, {})
    for name, here in identity.items():
        if state.identity.get(name) != here:
            raise ValueError(
                f"{folder / STATE}: begun with {name} {state.identity.get(name)!r}, this is "
                f"{here!r}: give another folder with -o"
            )
    folder.mkdir(parents=True, exist_ok=True)
    outcomes = dict(state.outcomes)
    ends = time.monotonic() + seconds
    with _sigterm_interrupts():
        for stage in _in_order(stages, outcomes):
            left = ends - time.monotonic()
            before = outcomes.get(stage.name, Outcome(stage.name, WAITING))
            if left < LEAST_SECONDS:
                yield replace(before, note="the time of this run was over: run it again")
                continue
            began = time.monotonic()
            begins(stage, min(stage.seconds, left))
            try:
                status, note = _run_stage(folder, stage, min(stage.seconds, left))
            except KeyboardInterrupt:
                _keep(folder, identity, outcomes, before, CUT, "interrupted", began)
                raise
            yield _keep(folder, identity, outcomes, before, status, note, began)


def _in_order(stages: Sequence[Stage], outcomes: Mapping[str, Outcome]) -> list[Stage]:
    """Those that are not done; those that failed come last."""
    status = {s.name: outcomes[s.name].status if s.name in outcomes else WAITING for s in stages}
    todo = [stage for stage in stages if status[stage.name] != DONE]
    return sorted(todo, key=lambda stage: status[stage.name] == FAILED)


def _keep(
    folder: Path,
    identity: Mapping[str, Any],
    outcomes: dict[str, Outcome],
    before: Outcome,
    status: str,
    note: str,
    began: float,
) -> Outcome:
    """Enter an outcome into `outcomes` and into the file."""
    took = round(before.seconds + time.monotonic() - began, 1)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    outcome = outcomes[before.stage] = Outcome(before.stage, status, took, now, note)
    stages = {name: asdict(one) for name, one in outcomes.items()}
    text = json.dumps({"identity": dict(identity), "stages": stages}, indent=1) + "\n"
    write_whole(folder / STATE, text)
    return outcome


# ---------------------------------------------------------------- one stage


def _run_stage(folder: Path, stage: Stage, seconds: float) -> tuple[str, str]:
    """(status, note). A command that fails does not keep the next one from running."""
    ends = time.monotonic() + seconds
    failures = []
    with (folder / f"{stage.name}.txt").open("a", encoding="utf-8") as log:
        for words in stage.commands(folder):
            left = ends - time.monotonic()
            code = _run_command(words, max(0.0, left), log)
            if code is None:
                return CUT, f"its {seconds:.0f} s were over"
            if code:
                failures.append(f"{' '.join(words[:4])} ... ended with code {code}")
    if failures:
        return FAILED, f"{failures[0]}: {_last_line(folder / f'{stage.name}.txt')}"
    return DONE, ""


def _run_command(words: Sequence[str], seconds: float, log: IO[str]) -> int | None:
    """Its exit code, None when its time was over. It and its children end with this call."""
    log.write(f"$ python {' '.join(words)}\n")
    log.flush()
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, *words], stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        env=environment, process_group=0, preexec_fn=_end_with_parent,
    )  # fmt: skip
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        return None
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask, wait, insist: the whole group, of which the first may have ended already."""
    for ask, patience in ((signal.SIGINT, GRACE_SECONDS), (signal.SIGKILL, GRACE_SECONDS)):
        if process.poll() is not None and ask == signal.SIGINT:
            continue
        try:
            os.killpg(process.pid, ask)
        except (ProcessLookupError, PermissionError):
            return
        try:
            process.wait(patience)
        except subprocess.TimeoutExpired:
            continue


# Looked up before any fork: PyTorch has threads, and one of them may hold the loader's lock.
_PRCTL = ctypes.CDLL(None).prctl if sys.platform == "linux" else None


def _end_with_parent() -> None:
    """Linux: a killed run must leave no benchmark behind that disturbs the next one."""
    if _PRCTL is not None:
        _PRCTL(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


@contextmanager
def _sigterm_interrupts() -> Iterator[None]:
    """SIGTERM, which a lender of machines sends, is handled like Ctrl-C."""

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _last_line(path: Path) -> str:
    """The last line with words in it of what was printed."""
    lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    words = [line.strip() for line in lines if any(c.isalnum() for c in line)]
    return words[-1][:200] if words else "it printed nothing"
