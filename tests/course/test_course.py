"""What the chapters say is true: commands run, shown output is real, excerpts are the real code,
figures are what the engine draws today, and every chapter has all its parts."""

from __future__ import annotations

import contextlib
import io
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from course.draw import KEPT, figures
from labs.runner.cut.catalogue import all_labs
from mini_engine.plots import hue
from tests.support.documents import (
    LINK,
    ROOT,
    fences,
    missing_lines,
    prose,
    run_command,
    same_figure,
    symbol_source,
)

COURSE = ROOT / "course"
CHAPTERS = sorted(COURSE.glob("[0-9][0-9]-*.md"))
DEEPER = sorted((COURSE / "deeper").glob("*.md"))
PARTS = (
    "Predict before you run",
    "In the wild",
    "When it does not help",
    "The ledger",
    "Check yourself",
    "The lab",
)
WORDS = (900, 4000)
DEEPER_WORDS = (300, 2000)
RUNNABLE = ("sh", "python")


@pytest.fixture
def grad_mode() -> Iterator[None]:
    """A page is a program of its own; the switch that it may set is one of the whole process."""
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


each_chapter = pytest.mark.parametrize("chapter", CHAPTERS, ids=lambda path: path.stem)
each_page = pytest.mark.parametrize("page", [*CHAPTERS, *DEEPER], ids=lambda path: path.stem)


@pytest.mark.usefixtures("grad_mode")
@pytest.mark.parametrize(
    "page",
    [
        *CHAPTERS,
        *DEEPER,
        *(COURSE / f"{name}.md" for name in ("EXERCISES", "INVARIANTS", "QUESTIONS")),
    ],
    ids=lambda path: path.stem,
)
def test_commands_and_code_of_a_page_run_and_print_what_it_shows(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for fence in fences(page.read_text()):
        where = f"{page.name}:{fence.line}"
        if fence.info == "sh":
            printed = ""
            for command in fence.commands:
                done = run_command(command, tmp_path)
                assert done.returncode == 0, f"{where}: {command}\n{done.stdout}\n{done.stderr}"
                printed += done.stdout
        elif fence.info == "python":
            with contextlib.redirect_stdout(io.StringIO()) as out:
                exec(compile(fence.body, where, "exec"), names)
            printed = out.getvalue()
        else:
            continue
        if fence.shows is not None:
            missing = missing_lines(fence.shows, printed)
            assert not missing, f"{where} shows what was not printed: {missing}\n{printed}"


@each_page
def test_excerpts_are_the_lines_of_the_code_that_they_name(page: Path) -> None:
    for fence in fences(page.read_text()):
        if fence.info.startswith("python from "):
            source = symbol_source(fence.info.removeprefix("python from ").strip())
            wanted = "\n".join(line.strip() for line in fence.body.splitlines())
            stripped = "\n".join(line.strip() for line in source.splitlines())
            missing = missing_lines(wanted, stripped)
            assert not missing, f"{page.name}:{fence.line} is not in {fence.info}: {missing}"


@each_page
def test_every_fence_says_what_it_is(page: Path) -> None:
    for fence in fences(page.read_text()):
        known = (*RUNNABLE, "sh gpu", "python gpu", "sh slow", "text")
        assert fence.info in known or fence.info.startswith("python from "), (
            f"{page.name}:{fence.line}: ```{fence.info}: see tests/support/documents.py"
        )


@each_chapter
def test_a_chapter_has_all_its_parts_in_order(chapter: Path) -> None:
    text = chapter.read_text()
    number = int(chapter.name[:2])
    assert re.match(rf"# {number}\. \S", text), "the title is '# N. Title'"
    headings = re.findall(r"^## (.+?)\s*$", prose(text), re.MULTILINE)
    assert [h for h in headings if h in PARTS] == list(PARTS), headings
    self_checks = text.partition("\n## Check yourself")[2].partition("\n## ")[0]
    assert self_checks.count("<details>") == self_checks.count("</details>") == 3
    assert re.search(r"!\[[^\]]+\]\(figures/[\w-]+\.svg\)", text), "a generated figure"


@each_chapter
def test_a_chapter_is_read_in_one_sitting(chapter: Path) -> None:
    words = len(re.findall(r"[\w'’]+", prose(chapter.read_text())))
    assert WORDS[0] <= words <= WORDS[1], f"{chapter.name} has {words} words"


@pytest.mark.parametrize("page", DEEPER, ids=lambda path: path.stem)
def test_a_deeper_page_names_its_chapter_and_is_read_in_one_sitting(page: Path) -> None:
    text = page.read_text()
    assert re.match(r"# \S", text)
    assert re.search(r"\]\(\.\./\d\d-[\w-]+\.md[)#]", text), "a link to the chapter it goes on from"
    words = len(re.findall(r"[\w'’]+", prose(text)))
    assert DEEPER_WORDS[0] <= words <= DEEPER_WORDS[1], f"{page.name} has {words} words"


DEAR = (  # seconds to draw, so `make slow` does
    "12-split.svg", "08-pools.svg", "08-ladder.svg", "10-swap-or-again.svg", "07-static.svg",
    "09-from-memory.svg", "10-batch-over-time.svg", "07-layouts.svg", "07-work.svg",
    "05-life-of-a-graph.svg",
)  # fmt: skip


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in DEAR else [])
        for name in sorted(figures())
    ],
)
def test_a_kept_figure_is_what_the_engine_draws_today(name: str, tmp_path: Path) -> None:
    figures()[name](tmp_path / name)
    fresh, kept = ((at / name).read_text() for at in (tmp_path, KEPT))
    assert same_figure(kept, fresh), f"course/figures/{name} is stale: make figures"


CODE_OF_A_COLOUR = re.compile(r"""["'(:]#[0-9a-fA-F]{3,6}\b|["'](?:white|black|C\d|tab:\w+)["']""")


def test_the_code_of_a_colour_stands_in_one_module_and_each_box_can_be_read() -> None:
    drawers = [*ROOT.glob("course/draw/*.py"), *ROOT.glob("mini_engine/plots/*.py")]
    drawers += [*ROOT.glob("labs/*/*.py"), *ROOT.glob("course/site/*.py")]
    for path in drawers:
        found = CODE_OF_A_COLOUR.findall(path.read_text())
        pages = path.name == "conf.py"  # paper, and right and wrong answers
        assert bool(found) == (path == Path(hue.__file__) or pages), (path, found)
    for path in (*ROOT.glob("course/site/*/*.css"), *ROOT.glob("course/site/*/*.js")):
        codes = set(re.findall(r"#[0-9a-fA-F]{3,8}\b(?!\()", path.read_text()))
        assert codes <= {"#000", "#fff", "#8886"}, path  # what fades, what shines, shadows
    known = {f"x{light[1:].lower()}" for light in hue.DARK}
    for path in KEPT.glob("[0-9]*.svg"):
        body = path.read_text().partition("</style>")[2]
        assert not CODE_OF_A_COLOUR.search(body), path
        assert set(re.findall(r"var\(--(x\w+)\)", body)) <= known, path
    for fill in set(hue.meanings().values()) - {hue.INK, hue.ON_LIGHT, hue.SOFT, hue.RULE}:
        ink = hue.ink_on(fill)
        for one, other in ((fill, ink), (hue.DARK[fill], hue.DARK[ink])):
            assert hue.contrast(one, other) >= 3.9, (fill, ink)


GROUND = {"PAPER", "INK", "ON_LIGHT", "SOFT", "RULE", "PANEL"}  # no data has them


def test_no_two_meanings_share_a_colour_by_day_or_in_the_dark() -> None:
    """Nor nearly: 0.02 is what an eye tells apart side by side (Ottosson, "OKLab", 2020)."""
    named = hue.meanings()
    assert len(set(named.values())) == len(named)
    for scheme in ({light: light for light in hue.DARK}, hue.DARK):
        places = {name: oklab(scheme[code]) for name, code in named.items()}
        for one, other in itertools.combinations(places, 2):
            if {one, other} - GROUND:
                apart = np.linalg.norm(places[one] - places[other])
                assert apart >= 0.045, (one, other, scheme[named[one]])


def oklab(code: str) -> np.ndarray:
    """Where a colour stands in a space in which equal steps look equal."""
    parts = np.array([int(code[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    cones = np.array([[0.4122, 0.5363, 0.0514], [0.2119, 0.6807, 0.1074], [0.0883, 0.2817, 0.6300]])
    axes = np.array(
        [[0.2105, 0.7936, -0.0041], [1.9780, -2.4286, 0.4506], [0.0259, 0.7828, -0.8087]]
    )
    found: np.ndarray = axes @ np.cbrt(cones @ linear)
    return found


def test_every_kept_figure_is_drawn_by_code_and_shown_somewhere() -> None:
    of_the_demo = {"timeline.png"}  # tests/course/test_docs.py
    kept = {path.name for path in KEPT.iterdir()}
    assert kept == set(figures()) | of_the_demo
    shown = {
        Path(target).name
        for document in (ROOT / "README.md", *COURSE.glob("*.md"), *DEEPER)
        for target, _ in LINK.findall(document.read_text())
    }
    assert kept <= shown


def test_every_chapter_lab_and_notebook_has_its_place_on_the_path() -> None:
    text = (COURSE / "README.md").read_text()
    targets = {target for target, _ in LINK.findall(text)}
    labs = {f"../labs/{path.name}/README.md" for path in (ROOT / "labs").glob("lab[0-9]*_*")}
    books = {f"../notebooks/{path.name}" for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")}
    deeper = {f"deeper/{path.name}" for path in DEEPER}
    assert {path.name for path in CHAPTERS} | labs | books | deeper <= targets


def test_the_hours_of_the_path_are_those_of_reading_and_of_the_labs() -> None:
    minutes: dict[str, int] = {}
    for lab in all_labs():
        chapter = Path(lab.chapter).name
        minutes[chapter] = minutes.get(chapter, 0) + lab.minutes
    text = (COURSE / "README.md").read_text()
    for chapter in CHAPTERS:
        hours = round((45 + minutes.get(chapter.name, 0)) / 30) / 2
        assert re.search(rf"\]\({chapter.name}\).*\| {hours:g} \|$", text, re.MULTILINE), chapter
