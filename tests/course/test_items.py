"""What the five texts describe has its place: every item is taught or says why it is not, what it
names exists, and the short tables of course/README.md say the same as the long ones."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.support.documents import LINK, ROOT, anchors

COURSE = ROOT / "course"
ITEMS = (COURSE / "ITEMS.md").read_text()
EVERY = list(range(1, 157))
HOW = ("counted", "predicted", "others", "not yet")  # in the order of the short tables
LAB = re.compile(r"\.\./labs/(lab\d\d_\w+)/README\.md")


@dataclass(frozen=True)
class Item:
    """A row of course/ITEMS.md."""

    number: int
    what: str
    taught: str
    built: str
    measured: str
    found: str

    @property
    def pages(self) -> set[str]:
        return {target for target, _ in LINK.findall(self.taught)}

    @property
    def labs(self) -> set[str]:
        return set(LAB.findall(self.built))


def rows(text: str, columns: int) -> list[list[str]]:
    """The rows of the tables of that width, without their heads."""
    found = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in found if len(row) == columns and row[0] not in ("item", "text")]


def items() -> list[Item]:
    return [Item(int(number), *rest) for number, *rest in rows(ITEMS, 6)]


def short() -> list[tuple[range, list[str]]]:
    """The rows of the short tables: their items, and their cells."""
    text = (COURSE / "README.md").read_text().partition("## What five texts describe")[2]
    table = [row for row in rows(text.partition("\n## ")[0], 5) if row[0][0].isdigit()]
    bounds = [[int(end) for end in row[0].split("–")] for row in table]
    return [(range(a, b + 1), row) for (a, b), row in zip(bounds, table, strict=True)]


def test_every_item_has_one_row_in_order() -> None:
    assert [item.number for item in items()] == EVERY
    assert len({item.what for item in items()}) == len(EVERY)


def test_an_item_is_taught_somewhere_or_says_why_not() -> None:
    for item in items():
        reason = re.fullmatch(r"not taught: \w.{10,}", item.taught)
        assert bool(item.pages) != bool(reason), f"{item.number}: {item.taught}"


def test_what_an_item_is_built_in_exists() -> None:
    tests = "".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    for item in items():
        for name in re.findall(r"`([^`]+)`", item.built):
            there = f"def {name}(" in tests if name.startswith("test_") else (ROOT / name).exists()
            assert there, f"{item.number}: there is no {name}"
        assert item.built == "–" or item.labs or "`" in item.built, item.number


def test_nothing_is_called_measured_without_a_kept_file() -> None:
    """A link to a file of course/measurements, or a word that says that we measured nothing."""
    for item in items():
        for word in item.measured.split(", "):
            kept = re.fullmatch(r"\[[^\]]+\]\((measurements/[\w.-]+\.json)\)", word)
            assert word in (*HOW, "–") or (kept and (COURSE / kept[1]).exists()), (
                f"{item.number} says {word!r}: use one of {', '.join(HOW)}, or link the file"
            )


def test_a_verdict_stands_among_the_claims_of_the_section_that_it_names() -> None:
    claims = (COURSE / "CLAIMS.md").read_text()
    verdicts = {
        next(iter(anchors(f"## {section}"))): {row[1] for row in rows(section, 3)}
        for section in claims.split("\n## ")[1:]
    }
    for item in items():
        if item.found != "–":
            verdict, section = re.fullmatch(r"\[([\w ]+)\]\(CLAIMS\.md#(.+)\)", item.found).groups()
            assert verdict in verdicts[section], f"{item.number}: no {verdict} in {section}"


def test_the_short_tables_cover_every_item_once() -> None:
    assert [number for span, _ in short() for number in span] == EVERY
    text = (COURSE / "README.md").read_text().partition("## What five texts describe")[2]
    tables = text.partition("\n## ")[0].split("\n### ")[1:]
    titles = re.findall(r"^## (.+)$", ITEMS, re.MULTILINE)
    for number, (title, table) in enumerate(zip(titles, tables, strict=True), 1):
        assert table.startswith(f"{number}. {title}\n")
        assert set(re.findall(r"ITEMS\.md#([\w-]+)", table)) == anchors(f"## {title}")
        section = ITEMS.partition(f"## {title}")[2].partition("\n## ")[0]
        inside = [int(row[0]) for row in rows(section, 6)]
        first, last = rows(table, 5)[1][0], rows(table, 5)[-1][0]
        assert (int(first.split("–")[0]), int(last.split("–")[1])) == (inside[0], inside[-1])


def test_the_short_tables_say_what_its_items_say() -> None:
    every = {item.number: item for item in items()}
    for span, (numbers, _, taught, built, measured) in short():
        inside = [every[number] for number in span]
        pages = {target for target, _ in LINK.findall(taught)}
        assert pages == set().union(*(item.pages for item in inside)), numbers
        assert set(LAB.findall(built)) == set().union(*(item.labs for item in inside)), numbers
        words = {word for item in inside for word in item.measured.split(", ")} - {"–"}
        assert measured == (", ".join(sorted(words, key=HOW.index)) or "–"), numbers
