"""The learner's own files: cut from the engine, kept, and backed up.

In:  a `Lab`. Out: files under `labs/mine/labNN_name/`, which git ignores, and beside them
`progress.json`: when each lab was started and passed, which hints were shown, and from which
version of the engine the files were cut.

The environment variable `LABS_HOME` names another folder for all of it.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from labs.runner import command
from labs.runner.cut.catalogue import LABS, PATH, Lab
from labs.runner.cut.cutter import functions
from labs.runner.cut.migrate import broken_imports
from labs.runner.cut.source import source

try:
    import fcntl
except ImportError:  # no Unix
    fcntl = None  # type: ignore[assignment]

FIRST = PATH[0]  # the lab that one who has none yet begins with
PASSED = ("passed", "edited")  # states that count as passed


@dataclass
class LabState:
    """How far a learner is in one lab. Times are ISO 8601, empty for what has not happened."""

    started: str = ""
    passed: str = ""
    passed_hash: str = ""  # of the learner's files when they passed
    failed: str = ""  # the last check, if it failed after one that passed
    hard: bool = False  # cut without the words of the TODOs
    source_hash: str = ""  # of the engine's files that they were cut from
    hints: dict[str, int] = field(default_factory=dict)  # hole number -> hints shown
    in_doubt: int = 0  # number of the hole that the last check's first failure points at
    checks: int = 0
    took: int = 0  # checks until it passed first
    holes: int = 0  # done at the last check


@dataclass
class Progress:
    """Where the learner stands. `current` is the number of the lab last worked on, "" for none."""

    labs: dict[str, LabState] = field(default_factory=dict)
    current: str = ""
    read: dict[str, LabState] = field(default_factory=dict)  # as the file had them

    def of(self, lab: Lab) -> LabState:
        """The state of a lab, to read or to change. A lab never touched is not written down."""
        return self.labs.setdefault(lab.number, LabState())


def home() -> Path:
    """The folder with everything that belongs to the learner."""
    return Path(os.environ.get("LABS_HOME") or LABS / "mine")


def load_progress() -> Progress:
    """Raises ValueError for an unreadable file, which is never overwritten."""
    path = home() / "progress.json"
    if not path.exists():
        return Progress()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        known = {number: LabState(**state) for number, state in data["labs"].items()}
        for state in known.values():
            for name, value in vars(LabState()).items():
                if type(value) is not type(found := vars(state)[name]):
                    raise TypeError(f"{name} is {found!r}")
        if not isinstance(current := data["current"], str):
            raise TypeError(f"current is {current!r}")
        return Progress(known, current, deepcopy(known))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read as progress ({error}): mend it, or move it away to begin "
            "anew; your files beside it are not touched"
        ) from error


def save_progress(progress: Progress) -> None:
    """Write down what has changed since it was read. What another command has written meanwhile
    about other labs stays."""
    home().mkdir(parents=True, exist_ok=True)
    with open(home() / ".lock", "w", encoding="utf-8") as lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        known = load_progress().labs
        known |= {n: s for n, s in progress.labs.items() if s != progress.read.get(n, LabState())}
        touched = {n: asdict(state) for n, state in known.items() if state != LabState()}
        text = json.dumps({"labs": touched, "current": progress.current}, indent=2) + "\n"
        write(home() / "progress.json", text)
    progress.labs, progress.read = known, deepcopy(known)


def write(path: Path, text: str) -> None:
    """Write a file whole or not at all: a full disk or a run cut short leaves the old one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_name(f"{path.name}.{os.getpid()}.new")
    try:
        fresh.write_text(text, encoding="utf-8")
        fresh.replace(path)
    except OSError as error:
        fresh.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


def my_files(lab: Lab) -> dict[str, Path]:
    """Learner's file name -> its path, whether it exists or not."""
    return {file: home() / lab.name / file for file in lab.sources}


def started(lab: Lab) -> bool:
    return all(path.exists() for path in my_files(lab).values())


def start(lab: Lab, progress: Progress) -> bool:
    """Cut the holes into the learner's files and write that down. Files that exist already are kept
    as they are. Returns whether a file was written; after an OSError none has been."""
    texts, written = lab.cut(), list[Path]()
    progress.current = lab.number
    try:
        for file, path in my_files(lab).items():
            if not path.exists():
                write(path, texts[file])
                written.append(path)
        if written:
            mine = progress.of(lab)
            mine.started = mine.started or now()
            mine.source_hash = digest(lab.reference())
        save_progress(progress)
    except OSError:  # a disk that is full
        for path in written:
            path.unlink()
        raise
    return bool(written)


def reset(lab: Lab, progress: Progress) -> list[Path]:
    """Cut anew and keep what was there as a backup beside it. Returns the backups."""
    backups = [back_up(path) for path in my_files(lab).values() if path.exists()]
    for path in my_files(lab).values():
        kept_by_sabotage(path).unlink(missing_ok=True)
    mine = progress.of(lab)
    mine.passed = mine.passed_hash = mine.failed = ""
    start(lab, progress)
    return backups


def kept_by_sabotage(path: Path) -> Path:
    """Where `labs sabotage` keeps what --undo needs."""
    return path.with_name(f"{path.name}.before-sabotage")


def back_up(path: Path) -> Path:
    stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
    backup = path.with_name(f"{path.stem}.{stamp}.bak")
    shutil.move(path, backup)
    return backup


# ---------------------------------------------------------------- files cut from an older engine


def stale(lab: Lab, progress: Progress) -> bool:
    """Do the learner's files no longer fit the engine?

    Either a file that the lab needs is missing while others are there; or the engine has changed,
    and a file imports from it what no longer exists, or lacks the function of a hole.
    """
    if not started(lab):
        return any((home() / lab.name).glob("*.py"))
    if not source_changed(lab, progress):
        return False
    written = [(hole.file, names) for hole, names in lab.definitions() if not hole.broken]
    return not all(
        _fits(path, [name for where, names in written if where == file for name in names])
        for file, path in my_files(lab).items()
    )


def _fits(path: Path, holes: Sequence[str]) -> bool:
    try:
        text = source(path)
        return set(holes) <= set(functions(text)) and not broken_imports(text)
    except (SyntaxError, ValueError):
        return True  # a check shows the line


def ask_for_update(*labs: Lab) -> str:
    """The one line about stale labs."""
    which = f"lab{'s' * (len(labs) > 1)} {', '.join(lab.number for lab in labs)}"
    number = [labs[0].number] if len(labs) == 1 else []
    return (
        f"your files of {which} were cut from an older engine: {command('update', *number)} "
        "carries your code over and keeps the old files"
    )


def refuse_unready(lab: Lab, progress: Progress) -> None:
    """Raises ValueError with the line to type, unless the learner's files can be used."""
    if stale(lab, progress):
        raise ValueError(ask_for_update(lab))
    if not started(lab):
        raise ValueError(f"lab {lab.number} is not started: {command('start', lab.number)}")


def source_changed(lab: Lab, progress: Progress) -> bool:
    """Has the engine's file changed since the learner's was cut from it?"""
    cut_from = progress.of(lab).source_hash
    return bool(cut_from) and cut_from != digest(lab.reference())


# ---------------------------------------------------------------- how far a learner is


def note(lab: Lab, progress: Progress, passed: bool, in_doubt: int, holes: int) -> None:
    """Write down what came of a check. A lab that has passed stays so until a check fails; the
    current lab stays the current one."""
    mine = progress.of(lab)
    mine.holes = holes
    mine.checks += 1
    mine.in_doubt = in_doubt
    mine.failed = "" if passed or not mine.passed else now()
    if mine.failed and my_digest(lab) == mine.passed_hash:
        mine.passed_hash = ""  # the same text, and the lab has changed
    if passed:
        mine.took = mine.took if mine.passed else mine.checks
        mine.passed = mine.passed or now()
        mine.passed_hash = my_digest(lab)
    progress.current = progress.current or lab.number


def state(lab: Lab, progress: Progress) -> str:
    """Empty before its start; stale if its files no longer fit the engine; then started, passed,
    edited (changed since it passed) or failed (at the last check, though it had passed before)."""
    mine = progress.of(lab)
    if stale(lab, progress):
        return "stale"
    if not (started(lab) and mine.passed):
        return "started" if started(lab) else ""
    changed = my_digest(lab) != mine.passed_hash
    if mine.failed and (changed or not mine.passed_hash):
        return "failed"  # until the text that passed before is brought back
    return "edited" if changed else "passed"


def solved(lab: Lab, progress: Progress) -> bool:
    """Has it passed, with no failing check since, and do its files fit the engine?"""
    return state(lab, progress) in PASSED


def standing(lab: Lab, progress: Progress) -> dict[str, Any]:
    """One lab for `--json`; `checks` are those until it passed first, or all so far.

    A stale lab that had passed counts as passed until its carried-over files fail.
    """
    where, mine = state(lab, progress), progress.of(lab)
    before = "started" if not mine.passed else "failed" if mine.failed else "passed"
    return {
        "lab": lab.name,
        "title": lab.title,
        "state": before if where == "stale" else where,
        "stale": where == "stale",
        "minutes": lab.minutes,
        "checks": mine.took or mine.checks,
        "hints": sum(mine.hints.values()),
        "needs": lab.needs,
        "without": lab.without,
        "current": lab.number == progress.current,
    }


def next_step(labs: Sequence[Lab], progress: Progress) -> str:
    """The one command to run now."""
    standings = {lab.number: standing(lab, progress) for lab in labs}
    current = standings.get(progress.current)
    if current and (current["stale"] or current["state"] not in PASSED):
        what = command("update", progress.current) if current["stale"] else command("check")
        return f"You are in lab {progress.current}: [bold]{what}[/]"
    if all(found["state"] in PASSED for found in standings.values()):
        return f"That is all. Now run your own engine: [bold]{command('demo')}[/]"
    lab = next_lab(labs, progress)
    if progress.current in PATH and lab.number not in PATH:
        return f"The short path is done. Choose a branch: [bold]{command('list')}[/]"
    return f"Next: [bold]{command('start', lab.number)}[/] ({lab.title})"


def next_lab(labs: Sequence[Lab], progress: Progress) -> Lab:
    """The first open lab after the current one, on the short path first; else the current one."""
    open_labs = [lab for lab in labs if standing(lab, progress)["state"] not in PASSED]
    on_path = [lab for lab in open_labs if lab.number in PATH]
    at = next((i for i, lab in enumerate(labs) if lab.number == progress.current), -1)
    ahead = [lab for lab in on_path if lab in labs[at + 1 :]]
    later = ahead or on_path or [lab for lab in labs[at + 1 :] if lab in open_labs] or open_labs
    return later[0] if later else labs[at]


def my_digest(lab: Lab) -> str:
    """Of the learner's files as they are; "" where one cannot be read: a check says why."""
    try:
        return digest({file: source(path) for file, path in my_files(lab).items()})
    except (ValueError, OSError):
        return ""


def digest(texts: dict[str, str]) -> str:
    whole = "\0".join(f"{name}\0{text}" for name, text in sorted(texts.items()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
