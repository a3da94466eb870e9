"""No page and no other lab's file shows what a lab has one write.

No three of a hole's lines may stand one after the other, and no more than half of them: what prints
the engine's way is `./lab solution`.
"""

from __future__ import annotations

from functools import cache

import pytest

from labs.runner.cut.catalogue import Lab, all_labs
from labs.runner.cut.cutter import CutError, body_of
from tests.support.documents import ROOT

LABS = all_labs()
TELLING = 13  # characters: shorter lines, like `return None` or `else:`, tell nothing
each_lab = pytest.mark.parametrize("lab", LABS, ids=lambda lab: lab.name)


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines()]


def holes(lab: Lab) -> list[tuple[str, list[str]]]:
    """Each function that the learner writes or mends, with its lines."""
    texts, found = lab.reference(), []
    for hole, names in lab.covered():
        for name in names:
            try:
                body = body_of(texts[hole.file], name)
            except (KeyError, CutError):
                continue  # a helper that only the fault has
            code = [line.strip() for line in body]
            found.append((name, [line for line in code if line and not line.startswith("#")]))
    return found


@cache
def pages() -> dict[str, list[str]]:
    """What one reads before or while one solves: chapters, pages and files of the labs."""
    documents = [path for top in ("course", "labs") for path in (ROOT / top).rglob("*.md")]
    found = {
        path.relative_to(ROOT).as_posix(): lines_of(path.read_text())
        for path in [ROOT / "README.md", *documents]
        if "mine" not in path.parts
    }
    for lab in LABS:
        for file, text in lab.cut().items():
            found[f"{lab.name}: {file}"] = lines_of(text)
    return found


def longest_run(body: list[str], lines: list[str]) -> list[str]:
    """The most lines of a body that stand one after the other on a page, without short ones."""
    best: list[str] = []
    places: dict[str, list[int]] = {}
    for place, line in enumerate(lines):
        places.setdefault(line, []).append(place)
    for first in range(len(body)):
        for place in places.get(body[first], []):
            length = 0
            while (
                first + length < len(body)
                and place + length < len(lines)
                and body[first + length] == lines[place + length]
            ):
                length += 1
            run = [line for line in body[first : first + length] if len(line) >= TELLING]
            best = max(best, run, key=len)
    return best


@each_lab
def test_nothing_shows_what_the_lab_has_one_write(lab: Lab) -> None:
    for name, body in holes(lab):
        telling = [line for line in body if len(line) >= TELLING]
        for page, lines in pages().items():
            if page.startswith(f"{lab.name}: "):
                continue
            run = longest_run(body, lines)
            given_away = len(run) >= 3 or 2 * len(run) > len(telling)
            assert not given_away, f"{page} shows {name}: {run}"


def test_a_page_that_shows_a_hole_is_found() -> None:
    name, body = next(found for found in holes(LABS[0]) if len(found[1]) > 2)
    assert len(longest_run(body, ["something", *body, "else"])) >= 2, name
