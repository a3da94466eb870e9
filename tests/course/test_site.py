"""The site is built without a warning, works without a network, can be read on a desk and on a
phone, and its widgets say what the engine says. The browser is a Chromium of the system; where
there is none, that part says so."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from course.draw.ch00_race import CARD, CONTEXT, HOST, SHAPE, WAYS, race
from course.site.__main__ import build
from course.site.layout import step_figures
from course.site.path import chapters
from course.site.widgets.ladder import ladder
from course.site.widgets.pages import SYSTEM, moments
from course.site.widgets.pages import WAYS as WAYS_OF_PAGES
from labs.runner.cut.catalogue import all_labs
from mini_engine.cli import main
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, optimal_ladder
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import eager_itl_us, full_itl_us
from mini_engine.step.run import Mode, around, padded_step, step_time
from mini_engine.step.step_model import StepModel
from tests.support.documents import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, TABLET = {"width": 390, "height": 844}, {"width": 834, "height": 1112}
DESKTOP = {"width": 1400, "height": 900}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by one worker: half a minute is too long for each (tests/support/distribution.py)."""
    if "PYTEST_XDIST_WORKER" in os.environ:  # all workers of a run share this folder
        building = tmp_path_factory.getbasetemp().parent / "building-the-site"
        building.touch(exist_ok=False)
    into = tmp_path_factory.mktemp("site") / "book"
    assert build(into) == 0, "Sphinx warns: see above"
    return into


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    if program is None:
        pytest.skip("no Chromium here: install one (apt install chromium) to drive the pages")
    api = pytest.importorskip("playwright.sync_api")
    with api.sync_playwright() as driver:
        flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        with driver.chromium.launch(executable_path=program, args=flags) as opened:
            yield opened


def page(browser: Any, url: str, **options: Any) -> tuple[Any, list[str]]:
    """An open page without a network, and everything that it complains of."""
    context = browser.new_context(offline=True, **options)
    opened, complaints = context.new_page(), []
    opened.on("console", lambda m: complaints.append(m.text) if m.type == "error" else None)
    opened.on("pageerror", lambda error: complaints.append(str(error)))
    opened.on("requestfailed", lambda request: complaints.append(request.url))
    opened.goto(url)
    return opened, complaints


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


def test_formulas_are_drawn_by_the_browser_itself(site: Path) -> None:
    text = (site / "course/03-the-decode-step.html").read_text()
    assert "<mfrac>" in text
    assert "$$" not in text


SLIDERS = pytest.mark.parametrize(
    ("kernels", "launch", "kernel", "batch"),
    [
        (373, 25.1, 2.8, 1),
        (1591, 10.6, 1.6, 1),
        (143, 2.1, 3.4, 32),
        (20, 20, 40, 1024),
        (20, 2, 1, 1),
    ],
)
NO_PAGE = """
const parts = {}, chosen = %s;
const document = {
  addEventListener() {},
  getElementById: (id) => (parts[id] ??= { value: chosen[id], textContent: "" }),
};
document.getElementById("step-figures").textContent = JSON.stringify(%s);
"""


@SLIDERS
def test_the_script_computes_what_the_launch_model_says_without_a_browser(
    kernels: int, launch: float, kernel: float, batch: int
) -> None:
    figures = step_figures()
    spec = replace(load_spec("h200"), cpu_op_us=launch)
    host_step_us, ahead_us = around(spec, batch)
    spec = replace(spec, host_step_us=host_step_us, ahead_us=ahead_us)
    kernel_us = kernel + (batch - 1) * figures["keys_us"] / kernels
    expected = [f(kernels, kernel_us, spec) / 1e3 for f in (eager_itl_us, full_itl_us)]
    told = told_by_the_page(kernels, launch, kernel, batch)
    assert told == pytest.approx(expected, abs=0.0051)  # two digits are shown


@pytest.mark.parametrize("batch", [1, 16, 64, 256])
def test_the_page_says_of_any_batch_what_the_commands_say(batch: int) -> None:
    """Its kernels are of one length, the mean, and so it is 4% off where keys are read."""
    spec, page = load_spec("h200"), (ROOT / "course/site/pages/timeline.md").read_text()
    kernels, launch, kernel = (
        float(re.search(rf'id="{name}" type="range".* value="([\d.]+)"', page)[1])  # type: ignore[index]
        for name in ("kernels", "launch", "kernel")
    )
    model = StepModel(named_shape("qwen3-0.6b"), spec)
    shape = StepShape.decode(batch, 512)
    expected = [model.itl_us(mode, shape) / 1e3 for mode in ("eager", "full")]
    told = told_by_the_page(int(kernels), launch, kernel, batch)
    assert told == pytest.approx(expected, rel=0.04)


def told_by_the_page(kernels: int, launch: float, kernel: float, batch: int) -> list[float]:
    """The two ITLs, in ms."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("no Node.js here to run the script of the page")
    chosen = {"kernels": kernels, "launch": launch, "kernel": kernel, "batch": batch}
    script = (ROOT / "course/site/static/timeline.js").read_text()
    asked = 'show(); console.log(["eager-itl", "graph-itl"].map((id) => parts[id].textContent))'
    program = NO_PAGE % (json.dumps(chosen), json.dumps(step_figures())) + script + asked
    done = subprocess.run([node, "-e", program], capture_output=True, text=True, check=True)
    return [float(ms) for ms in re.findall(r"'([\d.]+)'", done.stdout)]


def test_the_race_of_every_batch_is_what_a_step_takes() -> None:
    """The table comes from the model of many steps at once; here it is one step after another."""
    for way, (_, engine, mode) in WAYS.items():
        spec = load_spec(CARD, HOST, engine)
        seqs, tokens = spec.batch_defaults
        sizes = default_capture_sizes(seqs, tokens, mode=mode)
        dispatcher, lane = GraphDispatcher(mode, sizes, seqs), race()[way]
        for batch in (1, 2, 3, 7, 33, 100, 255, 256):
            found = dispatcher.dispatch(batch, batch, 1)
            launched, shape = padded_step(found, batch, batch * CONTEXT, batch * CONTEXT)
            step = step_time(step_ops(named_shape(SHAPE), shape, spec.ops), spec, launched, batch)
            assert lane.itl[batch - 1] == pytest.approx(step.itl_us, abs=1)
            assert lane.busy[batch - 1] == pytest.approx(step.gpu_busy_us, abs=1)
            before, _ = around(spec, batch)
            assert lane.before[batch - 1] == pytest.approx(before + spec.copy_us, abs=1)
            issued = lane.before[batch - 1] + lane.issue + lane.beside
            assert issued == pytest.approx(step.cpu_us, abs=1)
            assert (lane.launches, lane.kernels) == (step.launches, step.kernels)


def test_the_race_on_the_page_agrees_with_the_commands_at_every_batch(
    site: Path, browser: Any, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    opened, complaints = page(browser, f"file://{site}/index.html", viewport=DESKTOP)
    told = opened.evaluate("""() => {
      const el = document.querySelector("[data-widget=race]"), told = {};
      for (let batch = 1; batch <= 256; batch++) {
        el.model.set("batch", batch);
        told[batch] = [...el.querySelectorAll(".race-ms")].map((of) => [
          Number(of.dataset.us), of.firstChild.textContent, of.lastChild.textContent]);
      }
      return told;
    }""")
    for batch in range(1, 257):
        lanes = [race()[way] for way in ("transformers", "eager", "graph")]
        for lane, (us, shown, busy) in zip(lanes, told[str(batch)], strict=True):
            itl_us = lane.itl[batch - 1]
            assert us == itl_us
            assert float(shown.removesuffix(" ms")) == pytest.approx(itl_us / 1e3, abs=0.051)
            assert busy == f"GPU busy {int(100 * lane.busy[batch - 1] / itl_us + 0.5)}%"
    words = ["crossover", "--context", str(CONTEXT), "--out", str(tmp_path / "x.png"), "--json"]
    assert main(words) == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["batch"] for point in points][-1] == 256
    for point in points:
        _, eager, graph = (us for us, *_ in told[str(point["batch"])])
        assert eager == pytest.approx(point["eager"]["itl_us"], rel=0.01)
        assert graph == pytest.approx(point["full"]["itl_us"], rel=0.01)
    assert complaints == []
    opened.context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, TABLET, DESKTOP], ids=["phone", "tablet", "desktop"])
def test_the_race_is_run_by_keys_and_says_in_a_sentence_what_it_shows(
    site: Path, browser: Any, viewport: dict[str, int], scheme: str
) -> None:
    url = f"file://{site}/index.html"
    opened, complaints = page(browser, url, viewport=viewport, color_scheme=scheme)
    race_there = opened.locator("[data-widget=race]")
    slider, says = race_there.locator("input"), race_there.locator("[role=status]")
    assert says.text_content().startswith("At batch 1: ")
    slider.focus()
    opened.keyboard.press("End")
    assert says.text_content().startswith("At batch 256: ")
    assert slider.get_attribute("aria-valuetext") == "batch 256"
    assert race_there.evaluate("el => el.getBoundingClientRect().right") <= viewport["width"]
    assert complaints == []
    opened.context.close()


def test_the_race_stands_still_for_whoever_wants_less_motion(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/index.html", reduced_motion="reduce")
    texts = opened.locator(".race-text")
    before = texts.all_text_contents()
    opened.wait_for_timeout(300)
    assert texts.all_text_contents() == before
    assert len(before[2]) > len(before[1]) > len(before[0]), "the faster, the more text"
    opened.context.close()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_a_replay_goes_wrong_on_the_page_as_on_the_device(
    site: Path, browser: Any, viewport: dict[str, int]
) -> None:
    url = f"file://{site}/course/05-capture-and-replay.html"
    opened, complaints = page(browser, url, viewport=viewport)
    widget = opened.locator("[data-widget=capture]")
    ends = {
        "fill x": "✓ y is [10 10 10 10], as you wanted",
        "rebind x": "✗ y is [2 2 2 2], and you wanted [10 10 10 10]",
        "keep the output": "✗ answer is [10 10 10 10], and you wanted [2 2 2 2]",
        "append rows": "✗ y is [10 10 10 10], and you wanted [10 10 10 10 2 2]",
    }
    for title, end in ends.items():
        widget.get_by_role("button", name=title).focus()
        opened.keyboard.press("Enter")
        while widget.locator(".next").is_enabled():
            widget.locator(".next").press("Enter")
        assert widget.locator("[role=status]").text_content().startswith(end)
        marks = widget.locator("svg .mark").all_text_contents()
        assert marks[:2] == ["← read", "← written"]
    assert widget.evaluate("el => el.getBoundingClientRect().right") <= viewport["width"]
    assert complaints == []
    opened.context.close()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_ladder_on_the_page_costs_what_the_engine_says(
    site: Path, browser: Any, viewport: dict[str, int]
) -> None:
    url = f"file://{site}/course/08-capture-sizes.html"
    opened, complaints = page(browser, url, viewport=viewport)
    widget, spec = opened.locator("[data-widget=ladder]"), load_spec("h200")
    model, state = StepModel(named_shape("qwen3-0.6b"), spec), ladder()
    steps = {i + 1: count for i, count in enumerate(state["loads"][0]["steps"])}

    def us(rung: int | None, batch: int) -> float:
        keys, size = batch * 512, rung or batch
        mode: Mode = "full" if rung else "eager"
        return model.itl_us(mode, StepShape(size, size, keys, keys, batch))

    set_state = "(el, [name, value]) => el.model.set(name, value)"
    for rungs, batch in (([8, 32], 33), ([8, 32], 9), ([1, 2, 64], 33), ([40], 1), ([64], 64)):
        widget.evaluate(set_state, ["rungs", rungs])
        widget.evaluate(set_state, ["batch", batch])
        told = widget.evaluate("el => ({...el.dataset})")
        sizes = CaptureLadder(rungs)
        waste = sizes.waste(steps)
        rows = waste.padded_rows + waste.real_rows
        assert float(told["padding"]) == pytest.approx(waste.padded_rows / rows)
        assert float(told["us"]) == pytest.approx(us(sizes.rung(batch), batch), abs=0.51)
        whole = sum(count * us(sizes.rung(n), n) for n, count in steps.items())
        least = sum(count * us(n, n) for n, count in steps.items())
        assert float(told["lost"]) == pytest.approx(whole / least - 1, abs=0.001)
    widget.locator(".clear").press("Enter")
    widget.locator(".batch").press("End")
    widget.locator(".toggle").press("Enter")
    assert "1 rung (64)" in widget.locator(".total").text_content()
    widget.locator(".take").press("Enter")
    best = optimal_ladder(steps, 3, top=64)
    assert f"({', '.join(map(str, best))})" in widget.locator(".total").text_content()
    assert complaints == []
    opened.context.close()


@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
def test_the_page_table_shows_who_holds_which_block(
    site: Path, browser: Any, viewport: dict[str, int]
) -> None:
    opened, complaints = page(
        browser, f"file://{site}/course/07-kv-cache.html", viewport=viewport, color_scheme="dark"
    )
    widget = opened.locator("[data-widget=pages]")
    for way, title in WAYS_OF_PAGES.items():
        widget.get_by_role("button", name=title, exact=True).press("Enter")
        while widget.locator(".back").is_enabled():
            widget.locator(".back").press("Enter")
        for number, moment in enumerate(moments(way)):
            if number:
                widget.locator(".next").press("Enter")
            names = widget.locator(".block text:nth-of-type(2)").all_text_contents()
            for block, name in enumerate(names[1:], start=1):
                holders = [row["who"][0] for row in moment["tables"] if block in row["table"]]
                assert name == "".join(holders)
            cells = widget.locator("tbody td:last-child").all_text_contents()
            assert cells == [" ".join(map(str, row["table"])) for row in moment["tables"]]
            full = widget.locator(".block .full").count()
            assert full == moment["needed"] or way == "shared"  # where a common token stands once
            assert full <= moment["slots"]
    assert complaints == []
    opened.context.close()


def test_pages_share_a_prefix_only_where_the_pool_does() -> None:
    held = {way: [moment["slots"] for moment in moments(way)] for way in WAYS_OF_PAGES}
    assert all(shared <= paged for shared, paged in zip(held["shared"], held["paged"], strict=True))
    assert held["shared"][1] == held["paged"][1] - SYSTEM
    assert any("has to wait" in moment["told"] for moment in moments("padded"))
    assert not any("has to wait" in moment["told"] for moment in moments("paged"))


def test_a_widget_is_small_and_only_where_it_is_used(site: Path) -> None:
    for path in (ROOT / "course/site/widgets").glob("*.js"):
        assert path.stat().st_size <= 12_000, path
        users = [p for p in site.rglob("*.html") if f'id="data-{path.stem}"' in p.read_text()]
        assert all(f'data-widget="{path.stem}"' in user.read_text() for user in users)
        assert path.stem == "shim" or users


# ---------------------------------------------------------------- how it can be read

CUT = """() => [...document.querySelectorAll("article pre")]
  .filter((pre) => pre.scrollWidth > pre.clientWidth + 1)
  .map((pre) => [pre.closest("[class*=highlight-]")?.className ?? "output", pre.innerText])"""


def test_on_no_page_a_block_is_cut_or_a_script_fails(site: Path, browser: Any) -> None:
    """At 1440 pixels no code at all; at 390, where Python scrolls, no command and no output. Of the
    reference, whose pages are of one make, some."""
    desk = {"width": 1440, "height": 900}
    opened, complaints = page(browser, f"file://{site}/index.html", viewport=desk)
    pages = sorted(site.rglob("*.html"))
    modules = [path for path in pages if path.parent.name == "reference"]
    for path in [path for path in pages if path not in modules] + modules[::20]:
        opened.goto(f"file://{path}")
        name = path.relative_to(site).as_posix()
        failed = [c for c in complaints if not c.endswith("favicon.svg")]  # one that was left early
        assert failed == [], name
        if path in modules:
            continue
        assert opened.evaluate(CUT) == [], f"{name} at 1440"
        opened.set_viewport_size(PHONE)
        cut = [body for kind, body in opened.evaluate(CUT) if "python" not in kind]
        assert cut == [], f"{name} at 390"
        wide = opened.evaluate("document.documentElement.scrollWidth")
        assert wide <= PHONE["width"], f"{name} scrolls sideways"
        opened.set_viewport_size(desk)
    opened.context.close()


def test_every_page_says_what_it_is_and_has_a_picture(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text()
        if path.name in ("404.html", "genindex.html", "search.html"):
            continue
        assert re.search(r'<meta name="description" content="[^"]{20,260}">', text), path
        assert 'property="og:image"' in text
        assert "favicon.svg" in text
    assert (site / "_images/00-one-token.png").exists()


def test_a_chapter_shows_its_minutes_labs_and_notebooks_at_its_head(site: Path) -> None:
    for chapter in chapters(ROOT):
        text = (site / f"{chapter.page}.html").read_text()
        cards = text.partition('<ul class="cards')[2].partition("</ul>")[0]
        assert "45 min to read" in cards
        for page_of in [lab for lab, _ in chapter.labs.values()] + [*chapter.notebooks.values()]:
            assert f'href="../{page_of}.html"' in cards
        for widget in re.findall(r'data-widget="(\w+)"', text):
            assert f'href="#widget-{widget}"' in cards
            assert text.count(f'id="widget-{widget}"') == 1
    for lab in all_labs():
        text = (site / f"labs/{lab.folder.name}/README.html").read_text()
        cards = text.partition('<ul class="cards')[2].partition("</ul>")[0]
        assert f"{lab.minutes} min" in cards
        assert f"{Path(lab.chapter).stem}.html" in cards
    assert len(chapters(ROOT)) == len([*ROOT.glob("course/[0-9]*.md")])


def test_the_menu_has_three_levels(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/course/04-two-clocks.html", viewport=DESKTOP)
    menu = opened.locator(".sidebar-tree > ul > li")
    assert [name.strip() for name in menu.locator("> a").all_text_contents()] == [
        "The course", "The labs", "More"
    ]  # fmt: skip
    assert opened.locator(".sidebar-tree a:visible").count() == 3 + len(chapters(ROOT))
    opened.context.close()


def test_the_readme_begins_with_the_race(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/README.html", viewport={"width": 1440, "height": 900})
    first = opened.locator("article img").first
    assert first.get_attribute("src").endswith("race.svg")
    assert first.bounding_box()["y"] < 300
    opened.context.close()


def test_a_figure_has_its_place_before_it_comes_and_is_enlarged_there(
    site: Path, browser: Any
) -> None:
    opened, _ = page(browser, f"file://{site}/course/05-capture-and-replay.html", viewport=PHONE)
    for figure in opened.locator("article img").all():
        figure.scroll_into_view_if_needed()
        shown, true = figure.evaluate(
            "async (i) => { await i.decode(); return [[i.width, i.height], [i.naturalWidth,"
            " i.naturalHeight]]; }"
        )
        assert shown[0] == PHONE["width"] - 32  # the page's margins
        assert shown[1] == pytest.approx(shown[0] * true[1] / true[0], abs=1)
        assert figure.get_attribute("width") == str(true[0])
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
    assert sum(path.stat().st_size for path in site.rglob("*.*")) <= 12 * 2**20
    for path in site.glob("course/[0-9]*.html"):
        text = path.read_text()
        loads = set(re.findall(r'<(?:link|script|img)[^>]+(?:href|src)="([^"?#]+\.\w+)', text))
        there = {(path.parent / name).resolve() for name in loads} - {path}
        parts = [path, *(part for part in there if part.suffix not in (".html", ".inv"))]
        travels = {
            part: part.stat().st_size
            if part.suffix == ".png"
            else len(gzip.compress(part.read_bytes()))
            for part in parts
        }
        assert sum(travels.values()) <= 300_000, travels


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize(
    "name", ["index", "timeline", "course/04-two-clocks", "course/CHEATSHEET", "search"]
)
def test_a_page_fits_its_screen_and_complains_of_nothing(
    site: Path, browser: Any, name: str, viewport: dict[str, int], scheme: str
) -> None:
    url = f"file://{site}/{name}.html"
    opened, complaints = page(browser, url, viewport=viewport, color_scheme=scheme)
    wide = opened.evaluate("document.documentElement.scrollWidth")
    assert wide <= viewport["width"], "the page scrolls sideways"
    assert complaints == []
    opened.context.close()


def test_the_cheat_sheet_is_two_printed_pages(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/course/CHEATSHEET.html")
    side = dict.fromkeys(("top", "bottom", "left", "right"), "1cm")
    printed = opened.pdf(format="A4", margin=side)
    assert len(re.findall(rb"/Type\s*/Page[^s]", printed)) == 2
    opened.context.close()


def test_the_search_finds_without_a_network(site: Path, browser: Any) -> None:
    opened, complaints = page(browser, f"file://{site}/search.html?q=padding", viewport=DESKTOP)
    opened.locator("#search-results li").first.wait_for(timeout=20_000)
    found = opened.locator("#search-results li a")
    opened.locator("#search-results", has_text="finished").wait_for(timeout=20_000)
    places = [link.get_attribute("href") for link in found.all()]
    chapters_last = max(i for i, place in enumerate(places) if re.match(r"course/\d", place))
    reference_first = min(i for i, place in enumerate(places) if place.startswith("reference/"))
    assert chapters_last < reference_first, "chapters stand above the reference"
    assert complaints == []
    opened.context.close()
