"""The site is built without a warning, works without a network, and its sliders say what the
engine says. The browser is a Chromium of the system; where there is none, that part says so."""

from __future__ import annotations

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

from course.site.__main__ import build
from course.site.layout import step_figures
from mini_engine.model.config import named_shape
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape
from mini_engine.step.launch_model import eager_itl_us, full_itl_us
from mini_engine.step.run import around
from mini_engine.step.step_model import StepModel
from tests.support.documents import ROOT

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
PHONE, DESKTOP = {"width": 390, "height": 844}, {"width": 1400, "height": 900}


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
    opened, complaints = page(browser, f"file://{site}/search.html?q=crossover", viewport=DESKTOP)
    opened.locator("#search-results li").first.wait_for(timeout=20_000)
    assert opened.locator("#search-results li").count() >= 3
    assert complaints == []
    opened.context.close()
