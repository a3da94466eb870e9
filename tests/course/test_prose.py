"""The book's prose, as far as it can be counted: few new terms in a chapter, each in the glossary
under the chapter that explains it; sentences of some length, few brackets, and a reader who is
spoken to. Whether it is clear, only readers can tell."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.documents import LINK, ROOT, prose

CHAPTERS = sorted((ROOT / "course").glob("[0-9][0-9]-*.md"))
GLOSSARY = (ROOT / "course/GLOSSARY.md").read_text()
ENTRY = re.compile(r"^\*\*(.+?)\.\*\*(.*?)(?=^\*\*|\Z)", re.MULTILINE | re.DOTALL)
NEW_TERMS, SHORT, BRACKETS, WORDS_WITHOUT_YOU = 7, 0.12, 10, 60
YOU = re.compile(r"\b(you|your|yours|we|our|ours|us|let's)\b", re.IGNORECASE)
WORD = re.compile(r"[\w'’]+")

each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)


def told(chapter: Path) -> str:
    """The running text: no blocks, headings, tables, pictures, formulas or addresses of links."""
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)|<[^>]+>|\$[^$]+\$", "", prose(chapter.read_text()))
    text = LINK.sub("]", text).replace("[", "").replace("]", "")
    text = text.replace("**Takeaway.**", "")
    lines = [line for line in text.splitlines() if not line.startswith(("|", "#"))]
    return "\n".join(line.removeprefix(">").strip() for line in lines)


def new_terms(chapter: Path) -> list[str]:
    """What a chapter prints in bold to explain it; the dated box and takeaways explain nothing."""
    text = re.sub(r"^## (In the wild|Check yourself)\n.*?(?=^## |\Z)", "", chapter.read_text(),
                  flags=re.MULTILINE | re.DOTALL)  # fmt: skip
    not_of_terms = re.compile(r"[>|]|(\d+\.|-) \*\*")  # boxes, tables, heads of a list's entries
    lines = [line for line in prose(text).splitlines() if not not_of_terms.match(line)]
    bold = re.findall(r"\*\*([^*]+?)\*\*", "\n".join(lines))
    short = [" ".join(term.split()) for term in bold if len(term.split()) <= 3]
    return [term for term in short if not term.endswith((".", "?", ":"))]


@each_chapter
def test_a_chapter_explains_at_most_seven_new_terms_and_each_is_in_the_glossary(
    chapter: Path,
) -> None:
    entries = {name.strip().lower(): where for names, where in ENTRY.findall(GLOSSARY)
               for name in names.split(",")}  # fmt: skip
    terms = [term.lower() for term in new_terms(chapter)]
    terms = [term if term in entries else term.removesuffix("s") for term in terms]
    assert not [term for term in terms if term not in entries]
    assert len({entries[term] for term in terms}) <= NEW_TERMS, terms
    elsewhere = [term for term in terms if chapter.name not in entries[term]]
    assert not elsewhere, "the glossary names another chapter"


@each_chapter
def test_a_chapter_speaks_in_whole_sentences_to_somebody(chapter: Path) -> None:
    text = " ".join(told(chapter).split())
    words = len(WORD.findall(text))
    ends = r"(?<=[.!?])[\"”*)]*\s+(?=[A-Z\"“*●◐◇○])"
    sentences = [one for one in re.split(ends, text) if WORD.search(one)]
    short = sum(len(WORD.findall(one)) <= 7 for one in sentences) / len(sentences)
    assert short <= SHORT, f"{short:.0%} of the sentences have seven words or fewer"
    assert text.count("(") <= BRACKETS
    assert words / len(YOU.findall(text)) <= WORDS_WITHOUT_YOU


@each_chapter
def test_the_answer_to_each_prediction_stands_in_its_chapter_word_by_word(chapter: Path) -> None:
    """course/predictions.toml, from which the site makes its fields: change both."""
    fields = tomllib.loads((ROOT / "course/predictions.toml").read_text())[chapter.stem]
    before, _, rest = chapter.read_text().partition("## Predict before you run\n")
    asks, _, after = rest.partition("\n## ")
    assert {field["q"] for field in fields} == {*map(int, re.findall(r"^> (\d)\. ", asks, re.M))}
    text = " ".join(re.sub(r"^> ", "", before + after, flags=re.M).split())
    for field in fields:
        assert field["says"] in text, "course/predictions.toml tells of a sentence that is gone"
        assert field["is"] in field["of"] if "of" in field else field.get("is", 1) > 0
