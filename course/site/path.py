"""The path through the course, from the table of course/README.md: what the site draws of it.

In:  the repository. Out: a `Chapter` for each row, with the minutes that its labs take.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

READING = 45  # minutes for a chapter, as the path says
ROW = re.compile(r"\[(\d+) (.+?)\]\((.+?)\.md\)")
TARGET = re.compile(r"\[(\w+)\]\(\.\./(.+?)\.(?:md|ipynb)\)")


@dataclass(frozen=True)
class Chapter:
    part: str
    number: int
    title: str
    page: str  # of the repository, without its ending
    labs: dict[str, tuple[str, int]]  # number -> page and minutes
    notebooks: dict[str, str]  # number -> page

    @property
    def minutes(self) -> int:
        """Reading it and solving its labs."""
        return READING + sum(minutes for _, minutes in self.labs.values())


def chapters(root: Path) -> list[Chapter]:
    """In the order of the path."""
    found, part = [], "Chapter 0"
    for line in (root / "course/README.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[0].startswith("**"):
            part = cells[0].strip("*")
        elif len(cells) == 4 and (row := ROW.fullmatch(cells[0])):
            number, title, page = row.groups()
            labs = {n: (to, lab_minutes(root / to)) for n, to in TARGET.findall(cells[1])}
            books = dict(TARGET.findall(cells[2]))
            found.append(Chapter(part, int(number), title, f"course/{page}", labs, books))
    return found


def lab_minutes(page: Path) -> int:
    return int(tomllib.loads(page.with_name("lab.toml").read_text())["minutes"])
