"""The widgets say what the engine says, by mouse and by keys, in a Chromium of the system and,
in `make slow`, in a Firefox; where there is none, that part says so."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from course.draw.ch00_race import CARD, CONTEXT, HOST, RECORDED, SHAPE, SHOWN, WAYS, race
from course.site.layout import step_figures
from course.site.widgets.cutter import cutter
from course.site.widgets.errors import errors
from course.site.widgets.floor import ENGINES
from course.site.widgets.ladder import ladder
from course.site.widgets.pages import SYSTEM, moments
from course.site.widgets.pages import WAYS as WAYS_OF_PAGES
from course.site.widgets.roofline import BATCHES, CARDS, MODELS
from course.site.widgets.softmax import softmax
from mini_engine.cli import main
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, optimal_ladder
from mini_engine.dispatch.pieces import split_pieces
from mini_engine.model.config import named_shape
from mini_engine.sim.recorded import anatomy, load_recording
from mini_engine.step.cards import load_spec
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.launch_model import eager_itl_us, full_itl_us
from mini_engine.step.run import Mode, around, padded_step, step_time, with_pdl
from mini_engine.step.step_model import StepModel
from mini_engine.step.storage import stored_as
from tests.support.documents import ROOT
from tests.support.firefox import firefox
from tests.support.site_pages import DESKTOP, PHONE, TABLET, page

FIREFOXES = ("firefox", "firefox-esr")
SET_STATE = "(el, [name, value]) => el.model.set(name, value)"


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
    told = opened.evaluate("""() => {
      const el = document.querySelector("[data-widget=race]");
      el.querySelector(".race-views button:last-child").click();
      return el.model.get("recorded").batches.map((batch) => {
        el.model.set("batch", batch);
        return [...el.querySelectorAll(".race-ms")].map((of) => Number(of.dataset.us));
      });
    }""")
    for batch, steps in zip(RECORDED, told, strict=True):
        for way, us in zip(("eager", "graph"), steps, strict=True):
            step = anatomy(load_recording(f"sglang-qwen3-0.6b-h100-{way}", batch))
            assert us == round(step.gpu_us)
    assert complaints == []
    opened.context.close()


# What is pressed on which control of a widget, and where the widget is.
KEYS: dict[str, tuple[str, list[tuple[str, str]]]] = {
    "race": ("index", [("input", "End")]),
    "roofline": (
        "course/03-the-decode-step",
        [("[data-of=model] button:last-child", "Enter"), (".batch", "End")],
    ),
    "capture": (
        "course/05-capture-and-replay",
        [(".choices button:nth-child(2)", "Enter"), *5 * [(".next", "Enter")]],
    ),
    "pages": ("course/07-kv-cache", 4 * [(".next", "Enter")]),
    "ladder": ("course/08-capture-sizes", [(".batch", "End"), (".clear", "Enter")]),
    "cutter": (
        "course/09-full-and-piecewise",
        [("[data-op=qk_norm_rope_kv_write]", "Enter"), ("[data-of=mode] button", "Enter")],
    ),
    "softmax": ("course/12-flash-attention", [(".tile", "End"), (".next", "Enter")]),
    "floor": (
        "course/15-to-the-floor",
        [("[data-lever=graph]", "Enter"), ("[data-lever=many]", "Enter"), (".engine", "Enter")],
    ),
}
FOCUS = "document.querySelector('[data-widget={}]').querySelector('{}').focus()"
FOUND = """(() => {
  const el = document.querySelector("[data-widget=%s]"), box = el.getBoundingClientRect();
  return [[...el.querySelectorAll("[role=status]")].at(-1).textContent, box.right];
})()"""
# Texts of a widget on what lies behind them, in sRGB: WCAG's contrast of the weakest.
CONTRAST = """(() => {
  const linear = (v) => (v <= 10 ? v / 3295 : ((v / 255 + 0.055) / 1.055) ** 2.4);
  const light = (css) => {
    const [r, g, b] = css.match(/[\\d.]+/g).map(Number).map(linear);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (at) => {
    while (at && !/^rgb\\(/.test(getComputedStyle(at).backgroundColor)) at = at.parentElement;
    return getComputedStyle(at ?? document.documentElement).backgroundColor;
  };
  const says = (at) => [...at.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
  return [...document.querySelectorAll("[data-widget=%s] :is(p, li, b, td, th, span, button)")]
    .filter((at) => at.offsetParent && !at.disabled && says(at))
    .filter((at) => Number(getComputedStyle(at).opacity) === 1)
    .map((at) => {
      const both = [light(getComputedStyle(at).color), light(behind(at))];
      return [(Math.max(...both) + 0.05) / (Math.min(...both) + 0.05), at.textContent.slice(0, 30)];
    }).sort((a, b) => a[0] - b[0])[0];
})()"""


def test_every_widget_is_run_by_keys_and_can_be_read_in_both_schemes(
    site: Path, browser: Any
) -> None:
    opened, complaints = page(browser, f"file://{site}/index.html", viewport=PHONE)
    for name, (where, keys) in KEYS.items():
        opened.set_viewport_size(PHONE)
        opened.goto(f"file://{site}/{where}.html")
        before, _ = opened.evaluate(FOUND % name)
        for control, key in keys:
            opened.evaluate(FOCUS.format(name, control))
            opened.keyboard.press(key)
        after, _ = opened.evaluate(FOUND % name)
        assert after != before, name
        assert re.fullmatch(r"[A-Z0-9✓✗].{30,}\.", after), after  # a sentence, for a screen reader
        for viewport in (PHONE, TABLET, DESKTOP):
            opened.set_viewport_size(viewport)
            _, right = opened.evaluate(FOUND % name)
            assert right <= viewport["width"], name
            for scheme in ("light", "dark"):
                opened.emulate_media(color_scheme=scheme)
                ratio, text = opened.evaluate(CONTRAST % name)
                assert ratio >= 4.5, (name, scheme, text)
    assert [c for c in complaints if not c.startswith("file:")] == []  # pictures, left early
    opened.context.close()


@pytest.mark.slow
def test_firefox_says_the_same_of_the_same_keys(site: Path, browser: Any) -> None:
    program = next(filter(None, map(shutil.which, FIREFOXES)), None)
    if program is None:
        pytest.skip("no Firefox here: install one (apt install firefox-esr) to drive it as well")
    opened, _ = page(browser, f"file://{site}/index.html")
    with firefox(program, dark=True) as other:
        for name, (where, keys) in KEYS.items():
            opened.goto(f"file://{site}/{where}.html")
            other.size(**DESKTOP)
            other.open(f"file://{site}/{where}.html")
            for control, key in keys:
                opened.evaluate(FOCUS.format(name, control))
                opened.keyboard.press(key)
                other.ask(FOCUS.format(name, control))
                other.press(key)
            assert other.ask(FOUND % name)[0] == opened.evaluate(FOUND % name)[0]
            for viewport in (DESKTOP, TABLET, PHONE):
                other.size(**viewport)
                assert other.ask(FOUND % name)[1] <= viewport["width"], name
            ratio, text = other.ask(CONTRAST % name)
            assert ratio >= 4.5, (name, text)
        assert other.ask("matchMedia('(prefers-color-scheme: dark)').matches")
        assert other.complaints == []
    opened.context.close()


# Letters in a picture, in pixels, and how far to the right it reaches.
DRAWN = """el => [[...el.querySelectorAll("svg text")].map((text) =>
    parseFloat(getComputedStyle(text).fontSize) * text.getScreenCTM().a),
  el.getBoundingClientRect().right, el.textContent]"""


@pytest.mark.parametrize(
    "viewport", [PHONE, pytest.param(DESKTOP, marks=pytest.mark.slow)], ids=["phone", "desktop"]
)
def test_without_javascript_every_widget_stands_still(
    site: Path, browser: Any, viewport: dict[str, int]
) -> None:
    off = {"viewport": viewport, "java_script_enabled": False}
    opened, complaints = page(browser, f"file://{site}/index.html", **off)
    times = opened.locator(".still .race-ms b").all_text_contents()
    assert times == [f"{race()[way].itl[0] / 1e3:.1f} ms" for way in SHOWN]
    places = {name: where for name, (where, _) in KEYS.items()} | {"errors": "your-predictions"}
    for name, where in places.items():
        opened.goto(f"file://{site}/{where}.html")
        still = opened.locator(f"[data-widget={name}] .still:visible")
        letters, right, told = still.evaluate(DRAWN)
        assert still.locator("svg rect, svg circle, i, b").count() >= 3, name
        assert min(letters, default=10) >= 10, name
        assert right <= viewport["width"], name
        assert re.search(r"[A-Z].{30,}\.\s*$", told, re.DOTALL), name
        assert opened.locator("[data-widget=predict] details").count() >= 2 or where[:6] != "course"
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


def test_a_replay_goes_wrong_on_the_page_as_on_the_device(site: Path, browser: Any) -> None:
    url = f"file://{site}/course/05-capture-and-replay.html"
    opened, complaints = page(browser, url, viewport=PHONE)
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
    assert complaints == []
    opened.context.close()


def test_the_ladder_on_the_page_costs_what_the_engine_says(site: Path, browser: Any) -> None:
    url = f"file://{site}/course/08-capture-sizes.html"
    opened, complaints = page(browser, url, viewport=PHONE)
    widget, spec = opened.locator("[data-widget=ladder]"), load_spec("h200")
    model, state = StepModel(named_shape("qwen3-0.6b"), spec), ladder()
    steps = {i + 1: count for i, count in enumerate(state["loads"][0]["steps"])}

    def us(rung: int | None, batch: int) -> float:
        keys, size = batch * 512, rung or batch
        mode: Mode = "full" if rung else "eager"
        return model.itl_us(mode, StepShape(size, size, keys, keys, batch))

    for rungs, batch in (([8, 32], 33), ([8, 32], 9), ([1, 2, 64], 33), ([40], 1), ([64], 64)):
        widget.evaluate(SET_STATE, ["rungs", rungs])
        widget.evaluate(SET_STATE, ["batch", batch])
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


def test_the_page_table_shows_who_holds_which_block(site: Path, browser: Any) -> None:
    opened, complaints = page(
        browser, f"file://{site}/course/07-kv-cache.html", viewport=PHONE, color_scheme="dark"
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


def test_a_point_under_the_roof_is_what_its_kernels_move_and_compute(
    site: Path, browser: Any
) -> None:
    opened, complaints = page(browser, f"file://{site}/course/03-the-decode-step.html")
    widget = opened.locator("[data-widget=roofline]")
    for model, bits, card, batch in ((0, 0, 0, 0), (0, 1, 1, 9), (2, 0, 2, 3), (1, 1, 0, 6)):
        for name, value in {"model": model, "bit": bits, "card": card, "batch": batch}.items():
            widget.evaluate(SET_STATE, [name, value])
        config, spec = named_shape(MODELS[model]), load_spec(CARDS[card])
        stored, n = stored_as(config, ("bf16", "int4")[bits]), BATCHES[batch]
        ops = step_ops(config, StepShape.decode(n, CONTEXT), "fused9", stored)
        flops, moved = sum(op.flops for op in ops), sum(op.bytes for op in ops)
        held = stored.held + n * CONTEXT * stored.kv_bytes_per_token
        told = widget.evaluate("el => ({...el.dataset})")
        assert float(told["intensity"]) == pytest.approx(flops / moved, rel=1e-3)
        assert float(told["held"]) == pytest.approx(held / 2**30, abs=0.01)
        assert 1e3 * float(told["us"]) >= moved / spec.copy_bandwidth_gb_s * (1 - 1e-3)
        fits = "does not fit" not in widget.locator(".says").text_content()
        assert fits == (held <= spec.vram_bytes)
    assert complaints == []
    opened.context.close()


def test_a_step_is_cut_on_the_page_as_the_engine_cuts_it(site: Path, browser: Any) -> None:
    opened, complaints = page(browser, f"file://{site}/course/09-full-and-piecewise.html")
    widget, state = opened.locator("[data-widget=cutter]"), cutter()
    step = [*state["before"], *state["layer"] * state["layers"]]
    layer = [*dict.fromkeys(state["layer"])]
    for cuts in ([], ["attention"], ["qk_norm_rope_kv_write", "attention"], layer, layer[::2]):
        widget.evaluate(SET_STATE, ["cuts", cuts])
        pieces = split_pieces(step, set(cuts))
        graphs = sum(not piece.splitting for piece in pieces)
        alone = sum(len(piece.ops) for piece in pieces if piece.splitting)
        told = widget.evaluate("el => ({...el.dataset})")
        assert (int(told["graphs"]), int(told["alone"])) == (graphs, alone)
        assert int(told["launches"]) == graphs + alone + len(state["live"]) + 1
    assert complaints == []
    opened.context.close()


def test_a_softmax_in_tiles_ends_where_numpy_does(site: Path, browser: Any) -> None:
    opened, _ = page(browser, f"file://{site}/course/12-flash-attention.html")
    widget, state = opened.locator("[data-widget=softmax]"), softmax()
    scores, values = (np.array(state[name]) for name in ("scores", "values"))
    for tile in (1, 3, 4, 16):
        for name, value in (("tile", tile), ("done", 0)):
            widget.evaluate(SET_STATE, [name, value])
        for upto in [*range(tile, len(scores), tile), len(scores)]:
            widget.locator(".next").press("Enter")
            data = widget.evaluate("el => ({...el.dataset})")
            told = {name: float(data[name]) for name in "mla"}
            weights = np.exp(scores[:upto] - scores[:upto].max())
            assert told["m"] == scores[:upto].max()
            assert told["l"] == pytest.approx(weights.sum())
            assert told["a"] == pytest.approx((weights * values[:upto]).sum())
        assert widget.locator(".next").is_disabled()
        assert "the same" in widget.locator(".says").text_content()
    opened.context.close()


def test_every_set_of_levers_takes_what_a_step_takes(site: Path, browser: Any) -> None:
    opened, complaints = page(browser, f"file://{site}/course/15-to-the-floor.html")
    widget, ways = opened.locator("[data-widget=floor]"), []
    for engine, early, tokens in product(range(3), (0, 1), (1, 8)):
        ways.append((engine, "full", early, tokens))
    for engine, mode, early, tokens in [(0, "eager", 0, 1), (2, "eager", 0, 1), *ways]:
        state = {"engine": engine, "graph": int(mode == "full"), "early": early, "many": tokens}
        for name, value in state.items():
            widget.evaluate(SET_STATE, [name, value])
        spec = load_spec("h200", engine=[*ENGINES][engine])
        spec = with_pdl(spec) if early else spec
        ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(1, 512), spec.ops) * tokens
        us = step_time(ops, spec, mode).itl_us / tokens  # type: ignore[arg-type]
        assert float(widget.get_attribute("data-us")) == pytest.approx(us, abs=0.3)
    assert complaints == []
    opened.context.close()


# ---------------------------------------------------------------- predictions


def test_a_prediction_is_judged_and_kept_and_drawn_beside_ours(site: Path, browser: Any) -> None:
    opened, complaints = page(
        browser, f"file://{site}/course/03-the-decode-step.html", viewport=PHONE
    )
    rows = opened.locator("li .guess")
    for row, guess, verdict in (
        (0, "3", "12 times too much"),
        (1, "1,35", "right"),
        (3, "1.3", "2.0 times too little"),
    ):
        assert rows.nth(row).locator(".answer").text_content() == ""
        rows.nth(row).locator("input").fill(guess)
        rows.nth(row).locator("input").press("Enter")
        assert verdict in rows.nth(row).locator(".answer").text_content()
    rows.nth(2).locator("button").press("Enter")  # nothing is revealed to who has not answered
    assert rows.nth(2).locator(".answer").text_content() == ""
    opened.reload()
    assert "12 times too much" in rows.nth(0).text_content()
    assert "3 of 4 answers revealed, 1 right" in opened.locator(".predict .says").text_content()
    opened.locator(".predict .says a").click()
    opened.locator("svg circle.run").nth(2).wait_for()
    assert opened.locator("svg circle.run").count() == 3
    assert opened.locator("svg circle.issue").count() == len(errors()["ours"])
    assert opened.locator("tbody tr").count() == 3
    opened.locator(".forget").press("Enter")
    assert opened.locator("svg circle.run").count() == 0
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
