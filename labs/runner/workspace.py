"""The learner's own files: cut from the engine, kept, backed up, never a tracked file.

In:  a `Lab`. Out: files under `labs/mine/labNN_name/`, which git ignores, and beside them
`progress.json`: when each lab was started and passed, which hints were shown, and of which state of
the engine the files were cut.

`LABS_HOME` in the environment puts all of it into another folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path

from labs.runner.catalogue import LABS, Lab


@dataclass
class LabState:
    """What is known of a learner and one lab. Times are ISO 8601, empty where it did not happen."""

    started: str = ""
    passed: str = ""
    passed_hash: str = ""  # of the learner's files when they passed
    source_hash: str = ""  # of the engine's files that they were cut from
    hints: dict[str, int] = field(default_factory=dict)  # hole number -> hints shown
    checks: int = 0


@dataclass
class Progress:
    """Where the learner stands."""

    labs: dict[str, LabState] = field(default_factory=dict)
    current: int = 0

    def of(self, lab: Lab) -> LabState:
        return self.labs.setdefault(str(lab.number), LabState())


def home() -> Path:
    """The folder that everything of the learner is in."""
    return Path(os.environ.get("LABS_HOME") or LABS / "mine")


def load_progress() -> Progress:
    """An unreadable file raises ValueError; it is never overwritten."""
    path = home() / "progress.json"
    if not path.exists():
        return Progress()
    try:
        data = json.loads(path.read_text())
        labs = {number: LabState(**state) for number, state in data["labs"].items()}
        return Progress(labs, data["current"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} is not readable as progress ({error}): mend it, or move it away to begin "
            "anew; your files beside it are not touched"
        ) from error


def save_progress(progress: Progress) -> None:
    home().mkdir(parents=True, exist_ok=True)
    path = home() / "progress.json"
    fresh = path.with_suffix(".new")
    fresh.write_text(json.dumps(asdict(progress), indent=2) + "\n")
    fresh.replace(path)  # a run that is cut short leaves the old file whole


def my_files(lab: Lab) -> dict[str, Path]:
    """Learner's file name -> its path, whether it exists or not."""
    return {file: home() / lab.name / file for file in lab.sources}


def started(lab: Lab) -> bool:
    return all(path.exists() for path in my_files(lab).values())


def start(lab: Lab, progress: Progress) -> list[Path]:
    """Cut the holes into the learner's files. Files that are there already are kept as they are.

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
    """Cut anew; what was there is kept beside it. Returns the backups."""
    backups = []
    for path in my_files(lab).values():
        if path.exists():
            stamp = datetime.now().strftime("%Y%m%d-%H%M%S-%f")
            backup = path.with_name(f"{path.stem}.{stamp}.bak")
            shutil.move(path, backup)
            backups.append(backup)
    state = progress.of(lab)
    state.passed = state.passed_hash = ""
    start(lab, progress)
    return backups


def source_changed(lab: Lab, state: LabState) -> bool:
    """Has the engine's file changed since the learner's was cut from it?"""
    return bool(state.source_hash) and state.source_hash != digest(lab.reference())


def my_digest(lab: Lab) -> str:
    return digest({file: path.read_text() for file, path in my_files(lab).items()})


def solved(lab: Lab, state: LabState) -> bool:
    """Passed, and not edited since."""
    return bool(state.passed) and started(lab) and my_digest(lab) == state.passed_hash


def digest(texts: dict[str, str]) -> str:
    whole = "\0".join(f"{name}\0{text}" for name, text in sorted(texts.items()))
    return hashlib.sha256(whole.encode()).hexdigest()[:16]


def now() -> str:
    return datetime.now().astimezone().isoformat(timespec="seconds")
