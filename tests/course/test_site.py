"""The site is built without a warning, works without a network, and can be read on a desk and on a
phone. The browser is a Chromium of the system; where there is none, that part says so."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Any

import pytest

from course.site.path import chapters
from labs.runner.cut.catalogue import all_labs
from tests.support.documents import ROOT
from tests.support.site_pages import DESKTOP, PHONE, page

# ---------------------------------------------------------------- what it says


def test_the_site_has_every_chapter_notebook_lab_and_module(site: Path) -> None:
    pages = {path.relative_to(site).with_suffix("").as_posix() for path in site.rglob("*.html")}
    for path in (
        *ROOT.glob("course/[0-9]*.md"),
        *ROOT.glob("course/deeper/*.md"),
        *ROOT.glob("labs/lab*/README.md"),
    ):
        assert path.relative_to(ROOT).with_suffix("").as_posix() in pages
    for path in ROOT.glob("notebooks/*.ipynb"):
        assert path.relative_to(ROOT).with_suffix("").as_posix() in pages
    assert {"index", "timeline", "search", "reference/mini_engine.sim.graphs"} <= pages


def test_no_page_loads_anything_from_a_network(site: Path) -> None:
    loads = re.compile(r"<(?:script|link|img|iframe)[^>]+(?:src|href)=\"(https?:)?//")
    for path in site.rglob("*.html"):
        assert not loads.search(path.read_text()), path


# ---------------------------------------------------------------- how it can be read

CUT = """() => new Promise((told) => requestAnimationFrame(() => requestAnimationFrame(() => told(
  [...document.querySelectorAll("article pre")].filter((pre) => pre.scrollWidth > pre.clientWidth)
    .map((pre) => [pre.closest("[class*=highlight-]")?.className ?? "output", pre.innerText])))))"""
TOLD = "[...document.querySelectorAll('article pre')].map((pre) => pre.textContent.trimEnd())"


# Of each figure of a page: its letters in pixels, those that cover others, and those outside.
LETTERS = """() => [...document.querySelectorAll("figure.drawn svg")].map((svg) => {
  const frame = svg.getBoundingClientRect(), seen = [], bad = [];
  for (const text of svg.querySelectorAll("text")) {
    const box = text.getBoundingClientRect(), say = text.textContent.trim();
    if (!say) continue;
    if (box.left < frame.left - 2 || box.right > frame.right + 2) bad.push(`${say} leaves`);
    if (box.top < frame.top - 2 || box.bottom > frame.bottom + 2) bad.push(`${say} leaves`);
    const { a, b } = text.getScreenCTM();
    const px = parseFloat(getComputedStyle(text).fontSize) * Math.hypot(a, b);
    if (px < 9.95) bad.push(`${say} has ${px} pixels`);
    if (/^(|rotate.-?0 .*)$/.test(text.getAttribute("transform") ?? "")) {
      for (const [other, what] of seen) {
        const wide = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const tall = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        const covers = wide > 3 && tall > 0.45 * Math.min(box.height, other.height);
        if (covers) bad.push(`${say} covers ${what}`);
      }
      seen.push([box, say]);
    }
  }
  return bad;
}).flat()"""


def test_on_no_page_a_block_is_cut_a_figure_too_small_or_a_script_fails(
    site: Path, browser: Any
) -> None:
    """At 1440 pixels no code at all; at 390 Python alone, which scrolls and fades at its end: a
    command and an output break their lines there, and say what they said. Of the reference, whose
    pages are of one make, some."""
    desk = {"width": 1440, "height": 900}
    opened, complaints = page(browser, f"file://{site}/index.html", viewport=desk)
    pages = sorted(site.rglob("*.html"))
    modules = [path for path in pages if path.parent.name == "reference"]
    sizes = [desk, PHONE]
    for path in [path for path in pages if path not in modules] + modules[::20]:
        opened.goto(f"file://{path}")
        name, told = path.relative_to(site).as_posix(), []
        failed = [c for c in complaints if not c.endswith("favicon.svg")]  # one that was left early
        assert failed == [], name
        if path in modules:
            continue
        for size in sizes:
            if size != sizes[0]:
                opened.set_viewport_size(size)
            width, cut = size["width"], opened.evaluate(CUT)
            if size is PHONE:
                cut = [body for kind, body in cut if "python" not in kind]
                wide = opened.evaluate("document.documentElement.scrollWidth")
                assert wide <= width, f"{name} scrolls sideways"
            elif name.startswith("notebooks/"):
                first = opened.locator("article img, article svg[viewBox]").first.bounding_box()
                assert first["y"] + first["height"] <= 600, f"{name} begins with a picture"
                # whose letters have 15 pixels
                assert 15 * (PHONE["width"] - 32) / first["width"] >= 9.4, name
            assert cut == [], f"{name} at {width}"
            drawn = re.match(r"course/(\d|deeper)", name)
            assert not drawn or opened.evaluate(LETTERS) == [], f"{name} at {width}"
            told.append(opened.evaluate(TOLD))
        assert told[0] == told[1], name
        sizes.reverse()  # the next page comes in the size that the window has
    opened.context.close()


def test_every_page_says_what_it_is_and_has_a_picture(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        if path.name in ("404.html", "genindex.html", "search.html"):
            continue
        assert re.search(r'<meta name="description" content="[^"]{20,260}">', text), path
        assert 'property="og:image"' in text
        assert "favicon.svg" in text
    assert (site / "_images/preview.png").exists()


def test_a_chapter_shows_its_minutes_labs_and_notebooks_at_its_head(site: Path) -> None:
    for chapter in chapters(ROOT):
        text = (site / f"{chapter.page}.html").read_text()
        cards = text.partition('<ul class="cards')[2].partition("</ul>")[0]
        assert "45 min to read" in cards
        for page_of in [lab for lab, _ in chapter.labs.values()] + [*chapter.notebooks.values()]:
            assert f'href="../{page_of}.html"' in cards
        for widget in re.findall(r'id="widget-(\w+)"', text):
            assert f'href="#widget-{widget}"' in cards
            assert text.count(f'id="widget-{widget}"') == 1
    for lab in all_labs():
        text = (site / f"labs/{lab.folder.name}/README.html").read_text()
        cards = text.partition('<ul class="cards')[2].partition("</ul>")[0]
        assert f"{lab.minutes} min" in cards
        assert f'data-copy="./lab start {lab.number}"' in cards
        assert f"{Path(lab.chapter).stem}.html" in cards
    assert len(chapters(ROOT)) == len([*ROOT.glob("course/[0-9]*.md")])


def test_a_bar_below_the_thumb_leads_back_and_on_and_opens_the_menu(
    site: Path, browser: Any
) -> None:
    opened, _ = page(browser, f"file://{site}/course/04-two-clocks.html", viewport=PHONE)
    bar = opened.locator("nav.thumb")
    box = bar.bounding_box()
    assert (box["y"] + box["height"], box["width"]) == (PHONE["height"], PHONE["width"])
    bar.locator("label").click()
    opened.locator(".sidebar-drawer a", has_text="The labs").wait_for()
    opened.locator(".sidebar-overlay").click(position={"x": 380, "y": 400})
    bar.locator("a").last.click()
    assert opened.url.endswith("course/05-capture-and-replay.html")
    bar.locator("a").first.click()
    assert opened.url.endswith("course/04-two-clocks.html")
    opened.context.close()


def test_two_lanes_of_the_race_are_in_the_first_screen_of_a_phone(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/index.html", viewport=PHONE)
    second = opened.locator(".race-lanes").nth(1).bounding_box()
    assert second["y"] + second["height"] <= PHONE["height"]
    opened.context.close()


def test_the_readme_begins_with_the_race(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/README.html", viewport={"width": 1440, "height": 900})
    first = opened.locator("article img").first
    assert first.get_attribute("src").endswith("race.svg")
    assert first.bounding_box()["y"] < 300
    opened.context.close()


def test_a_figure_is_as_wide_as_a_phone_and_is_enlarged_there(site: Path, browser: Any) -> None:
    chapter = f"file://{site}/course/05-capture-and-replay.html"
    opened, _ = page(browser, chapter, viewport=PHONE)
    figure = opened.locator("figure.drawn svg").last
    assert figure.bounding_box()["width"] == PHONE["width"] - 32  # the page's margins
    assert len(figure.locator("xpath=../figcaption/b").text_content()) > 20
    figure.click()
    assert figure.bounding_box()["width"] == 1104
    assert opened.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    opened.context.close()


def test_a_copied_command_has_no_prompt(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/README.html", viewport=DESKTOP)
    opened.evaluate("navigator.clipboard.writeText = (text) => { window.copied = text; }")
    opened.locator(".highlight-sh").first.hover()
    opened.locator(".highlight-sh button.copy").first.click()
    assert opened.evaluate("window.copied") == "make demo\nmake test"
    opened.context.close()


def test_the_site_is_light(site: Path) -> None:
    """On disk, and a chapter as it travels: what is text is compressed by any server."""
    assert sum(path.stat().st_size for path in site.rglob("*.*")) <= 12_000_000
    for path in site.glob("course/[0-9]*.html"):
        text = path.read_text()
        loads = set(re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="([^"?#]+\.\w+)', text))
        there = {(path.parent / name).resolve() for name in loads} - {path}
        parts = [path, *(part for part in there if part.suffix not in (".html", ".inv"))]
        parts += site.glob("_static/fonts/*.woff2")
        travels = {
            part: part.stat().st_size
            if part.suffix in (".png", ".woff2")
            else len(gzip.compress(part.read_bytes()))
            for part in parts
        }
        assert sum(travels.values()) <= 300_000, travels


def test_the_cheat_sheet_is_two_printed_pages(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/course/CHEATSHEET.html")
    side = dict.fromkeys(("top", "bottom", "left", "right"), "1cm")
    printed = opened.pdf(format="A4", margin=side)
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) == 2
    opened.context.close()


@pytest.mark.parametrize("word", ["padding", "crossover"])
def test_the_search_finds_without_a_network(site: Path, browser: Any, word: str) -> None:
    opened, complaints = page(browser, f"file://{site}/search.html?q={word}", viewport=DESKTOP)
    opened.locator("#search-results li").first.wait_for(timeout=20_000)
    found = opened.locator("#search-results li a")
    opened.locator("#search-results", has_text="finished").wait_for(timeout=20_000)
    places = [link.get_attribute("href") for link in found.all()]
    chapters = [i for i, place in enumerate(places) if re.match(r"course/\d", place)]
    course_first = min(i for i, place in enumerate(places) if place.startswith("course/"))
    reference_first = min(i for i, place in enumerate(places) if place.startswith("reference/"))
    assert course_first < reference_first, "the course stands above the reference"
    assert chapters, "a command is on the page of its chapter, too"
    assert max(chapters) < reference_first, "and so does each of its chapters"
    assert complaints == []
    opened.context.close()
