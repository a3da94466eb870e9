"""Carries a learner over from the labs' old numbers, 1 to 21, to those of their chapters.

In:  `labs/mine` as it was. Out: the same under the new names: folders, what the files import from
the labs, `progress.json` and `ledger.jsonl`.
"""

from __future__ import annotations

import re

from labs.runner import workspace
from labs.runner.cut.catalogue import lab_number

NEW = {  # old number -> number today; the name behind it has stayed
    "1": "4", "2": "3", "3": "7", "4": "12", "5": "5", "6": "8", "7": "8b", "8": "9", "9": "9b",
    "10": "10", "11": "11", "12": "12b", "13": "15", "14": "15b", "15": "13", "16": "14",
    "17": "16", "18": "6", "19": "6b", "20": "7b", "21": "13b",
}  # fmt: skip


def old_name(number: str) -> str:
    """The folder that the lab of an old number had: `lab01_launch_overhead`."""
    _, _, name = lab_number(NEW[number]).name.partition("_")
    return f"lab{int(number):02}_{name}"


def renumber() -> list[tuple[str, str]]:
    """Rename what bears an old number, and return (old, new) of each folder that moved.

    Nothing happens where the learner's files bear the new numbers. Whatever stops it, a second call
    goes on: progress, by which an old folder is known, is written last. Raises ValueError, and
    leaves both as they are, where a folder of the new name is there already.
    """
    before, of_before = workspace.read_progress()
    if not of_before:
        return []
    names = {old_name(number): lab_number(new).name for number, new in NEW.items()}
    moved = []
    for old, new in names.items():
        here, there = workspace.home() / old, workspace.home() / new
        if old == new or not here.exists():
            continue
        if there.exists():
            raise ValueError(f"{here} is to become {there}, which exists: move one of them away")
        here.rename(there)
        moved.append((old, new))
    progress = workspace.Progress(current=NEW.get(before.current, ""))
    for number, state in before.labs.items():
        lab = lab_number(NEW[number])
        passing = workspace.my_digest(lab) == state.passed_hash
        for file in (workspace.home() / lab.name).glob("*.py*"):
            file.write_bytes(_renamed(file.read_bytes(), names))
        progress.labs[lab.number] = state
        if passing:
            state.passed_hash = workspace.my_digest(lab)
    ledger = workspace.home() / "ledger.jsonl"
    if ledger.exists():
        text = ledger.read_text(encoding="utf-8")
        text = re.sub(r"\(lab (\d+)\)", lambda m: f"(lab {NEW.get(m[1], m[1])})", text)
        workspace.write(ledger, text)
    workspace.save_progress(progress)
    return moved


def _renamed(content: bytes, names: dict[str, str]) -> bytes:
    """A file's content with the labs' folders by their new names. Bytes: in any encoding."""
    pattern = re.compile(rb"\b(" + "|".join(names).encode() + rb")\b")
    return pattern.sub(lambda match: names[match[1].decode()].encode(), content)
