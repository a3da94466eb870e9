"""The learner's own files: cut from the engine, kept, backed up and brought up to date.

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
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from labs.runner.checks.checking import still_open
from labs.runner.cut.carry import Carried, broken_imports, carry
from labs.runner.cut.catalogue import LABS, Lab
from labs.runner.cut.cutter import functions
from labs.runner.cut.source import source, syntax_error
from labs.runner.words import command


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


@dataclass
class Progress:
    """Where the learner stands. `current` is the number of the lab last worked on, 0 for none."""

    labs: dict[str, LabState] = field(default_factory=dict)
    current: int = 0

    def of(self, lab: Lab) -> LabState:
        """The state of a lab, to read or to change. A lab never touched is not written down."""
        return self.labs.setdefault(str(lab.number), LabState())


def home() -> Path:
    """The folder with everything that belongs to the learner."""
    return Path(os.environ.get("LABS_HOME") or LABS / "mine")


def load_progress() -> Progress:
    """Raises ValueError for an unreadable file, which is never overwritten."""
    path = home() / "progress.json"
    if not path.exists():
        return Progress()
    try:
        data = json.loads(path.read_text())
        labs = {number: LabState(**state) for number, state in data["labs"].items()}
        return Progress(labs, data["current"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} cannot be read as progress ({error}): mend it, or move it away to begin "
            "anew; your files beside it are not touched"
        ) from error


def save_progress(progress: Progress) -> None:
    home().mkdir(parents=True, exist_ok=True)
    path = home() / "progress.json"
    fresh = path.with_suffix(".new")
    touched = {n: asdict(state) for n, state in progress.labs.items() if state != LabState()}
    fresh.write_text(json.dumps({"labs": touched, "current": progress.current}, indent=2) + "\n")
    fresh.replace(path)  # a run that is cut short leaves the old file whole


def my_files(lab: Lab) -> dict[str, Path]:
    """Learner's file name -> its path, whether it exists or not."""
    return {file: home() / lab.name / file for file in lab.sources}


def started(lab: Lab) -> bool:
    return all(path.exists() for path in my_files(lab).values())


def start(lab: Lab, progress: Progress) -> list[Path]:
    """Cut the holes into the learner's files. Files that exist already are kept as they are.

    Returns the files that were written.
    """
    texts, written = lab.cut(), []
    for file, path in my_files(lab).items():
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(texts[file])
            written.append(path)
    state = progress.of(lab)
    if written:
        state.started = state.started or now()
        state.source_hash = digest(lab.reference())
    progress.current = lab.number
    return written


def reset(lab: Lab, progress: Progress) -> list[Path]:
    """Cut anew and keep what was there as a backup beside it. Returns the backups."""
    backups = [_back_up(path) for path in my_files(lab).values() if path.exists()]
    state = progress.of(lab)
    state.passed = state.passed_hash = state.failed = ""
    start(lab, progress)
    return backups


def _back_up(path: Path) -> Path:
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
    which = f"lab{'s' * (len(labs) > 1)} {', '.join(str(lab.number) for lab in labs)}"
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


def update(lab: Lab, progress: Progress) -> tuple[Carried, list[Path]]:
    """Cut anew with the learner's code carried over. Returns what became of it, and the backups.

    Old files that hold nothing of this lab stay where they are. A lab that had passed stays passed
    if all its holes were carried over. Raises ValueError if an old file is not Python; then, as
    after any error, nothing has been changed.
    """
    files, folder = my_files(lab), home() / lab.name
    expected = [path for path in files.values() if path.exists()]
    old = {}
    for path in [*expected, *sorted(set(folder.glob("*.py")) - set(expected))]:
        if broken := syntax_error(path):
            raise ValueError(f"lab {lab.number} is left as it is, mend this first: {broken}")
        old[path.name] = source(path)
    state = progress.of(lab)
    had_passed = state.passed and (stale(lab, progress) or solved(lab, progress))
    done = carry(lab.cut(), old, lab.definitions())
    for name, text in done.texts.items():
        try:
            compile(text, name, "exec")
        except SyntaxError as error:
            raise ValueError(f"lab {lab.number} is left as it is: {error}") from error
    backups = [_back_up(folder / name) for name in old if name in files or name in done.used]
    for file, path in files.items():
        path.write_text(done.texts[file])
    state.started = state.started or now()
    state.source_hash = digest(lab.reference())
    if had_passed:
        open_again = bool(still_open(lab, files))
        state.failed = now() if open_again else ""
        state.passed_hash = "" if open_again else my_digest(lab)
    progress.current = lab.number
    return done, backups


def source_changed(lab: Lab, progress: Progress) -> bool:
    """Has the engine's file changed since the learner's was cut from it?"""
    cut_from = progress.of(lab).source_hash
    return bool(cut_from) and cut_from != digest(lab.reference())


def my_digest(lab: Lab) -> str:
    """Of the learner's files as they are; "" where one cannot be read, which a check will tell."""
    try:
        return digest({file: source(path) for file, path in my_files(lab).items()})
    except (ValueError, OSError):
        return ""


def note(lab: Lab, progress: Progress, passed: bool, in_doubt: int) -> None:
    """Write down what came of a check. A lab that has passed stays so until a check fails."""
    state = progress.of(lab)
    state.checks += 1
    state.in_doubt = in_doubt
    state.failed = "" if passed or not state.passed else now()
    if state.failed and my_digest(lab) == state.passed_hash:
        state.passed_hash = ""  # the same text, and the lab has changed
    if passed:
        state.took = state.took if state.passed else state.checks
        state.passed = state.passed or now()
        state.passed_hash = my_digest(lab)
    progress.current = lab.number


def solved(lab: Lab, progress: Progress) -> bool:
    """Has it passed, with no failing check since, and do its files fit the engine?"""
    state = progress.of(lab)
    green = bool(state.passed) and not red(lab, progress)
    return green and started(lab) and not stale(lab, progress)


def red(lab: Lab, progress: Progress) -> bool:
    """Has its last check failed, and has the text that passed before it not been brought back?"""
    state = progress.of(lab)
    return bool(state.failed) and (not state.passed_hash or edited(lab, progress))


def edited(lab: Lab, progress: Progress) -> bool:
    """Have the files of a lab that has passed changed since the last check?"""
    return bool(progress.of(lab).passed) and my_digest(lab) != progress.of(lab).passed_hash


def digest(texts: dict[str, str]) -> str:
    whole = "\0".join(f"{name}\0{text}" for name, text in sorted(texts.items()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
