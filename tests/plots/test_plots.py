"""Figures: what is drawn is what was given, and the files repeat to the byte."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib
import pytest
from matplotlib.figure import Figure

from mini_engine import plots
from mini_engine.bench.rows import measured_steps
from mini_engine.dispatch.ladder import CaptureLadder
from mini_engine.model.config import named_shape
from mini_engine.plots.canvas import canvas
from mini_engine.plots.cell import LEFT, RIGHT, lanes_svg
from mini_engine.plots.figures import LAUNCHES, RUNS, step_bars
from mini_engine.sim.trace import CPU, GPU, TraceEvent, busy_us
from mini_engine.step.cards import load_spec
from mini_engine.step.curves import ItlCurve, itl_curve
from tests.support.bench_rows import made_up, made_up_rows
from tests.support.figure_helpers import panels, png_size, step, watch, words

LADDER = CaptureLadder([1, 2, 4, 8, 16, 24, 32])
STEPS = {"eager": step(5.0), "piecewise": step(3.0), "one graph": step(2.5, category="node")}


def curve(
    max_batch: int = 32, context: int = 1024, card: str = "l4", engine: str = "vllm",
    host: str = "server",
) -> ItlCurve:  # fmt: skip
    shape, spec = named_shape("qwen3-0.6b"), load_spec(card, host, engine)
    return itl_curve(shape, spec, LADDER, context=context, max_batch=max_batch)


CURVE = curve()  # a slow card, so that its crossover is on the page
BARS = {"recorded": {RUNS: 5000.0, LAUNCHES: 60.0}, "predicted": {RUNS: 4000.0, LAUNCHES: 9.0}}

DRAWINGS: dict[str, Callable[[Path], None]] = {
    "timeline": lambda path: plots.timeline(STEPS, path),
    "recorded timeline": lambda path: plots.timeline(STEPS, path, middle=True),
    "step_bars": lambda path: step_bars(
        BARS, path, title="A kernel runs for most of it", caption="recorded"
    ),
    "crossover": lambda path: plots.itl_curve(CURVE, path),
    "itl_against_batch": lambda path: plots.itl_against_batch(
        measured_steps(made_up_rows()), path, made_up(made_up_rows(), emulated=False)
    ),
}


@cache
def once(name: str) -> Figure:
    """One of them, drawn once."""
    with pytest.MonkeyPatch.context() as patched, TemporaryDirectory() as folder:
        figures = watch(patched)
        DRAWINGS[name](Path(folder) / "x.png")
    (figure,) = figures
    return figure


@pytest.fixture(params=DRAWINGS)
def drawn(request: pytest.FixtureRequest) -> Figure:
    return once(request.param)


# ---------------------------------------------------------------- of every figure


@pytest.mark.parametrize("name", ["step_bars", "crossover"])
def test_a_figure_is_a_large_png_and_the_same_file_whatever_the_readers_settings(
    name: str, tmp_path: Path
) -> None:
    first, again, draw = tmp_path / "new" / "1.png", tmp_path / "2.png", DRAWINGS[name]
    draw(first)
    with matplotlib.rc_context({"font.size": 31, "axes.facecolor": "yellow"}):
        draw(again)
        assert matplotlib.rcParams["font.size"] == 31  # and they are put back
    width, height = png_size(first)
    assert width >= 1100  # so that half of it still fills half a page
    assert height >= 600
    assert first.stat().st_size > 10_000  # a blank page of that size takes 200 bytes
    assert first.read_bytes() == again.read_bytes()
    assert b"Software" not in first.read_bytes()


@pytest.mark.parametrize("name", ["$\\frac$", "a$b_{c$", "x" * 250])
def test_a_name_is_no_formula_and_may_be_long(name: str, tmp_path: Path) -> None:
    with canvas(tmp_path / "1.png", (13, 7), title=f"Of {name}", caption=f"On {name}") as figure:
        figure.subplots().plot([1, 2])
    assert png_size(tmp_path / "1.png") == (1300, 700)


def test_every_panel_has_a_name_on_its_axes_and_the_title_is_a_sentence_of_words(
    drawn: Figure,
) -> None:
    title, caption = (text.get_text() for text in drawn.texts[:2])
    assert len(title.split()) > 3
    assert caption
    every = panels(drawn)
    assert every[-1].get_xlabel()
    left = min(axes.get_position().x0 for axes in every)
    for axes in every:
        lanes = [label.get_text() for label in axes.get_yticklabels()] == ["GPU", "CPU"]
        if axes.get_position().x0 < left + 0.01:
            assert lanes or axes.get_ylabel() or not len(axes.get_yticks())  # named bars


def test_words_stay_on_the_page(drawn: Figure) -> None:
    page = drawn.bbox
    texts = [*drawn.texts, *(text for axes in panels(drawn) for text in axes.texts)]
    for text in texts:
        box = text.get_window_extent()
        assert box.x0 >= page.x0, text.get_text()
        assert box.x1 <= page.x1, text.get_text()
        assert box.y0 >= page.y0, text.get_text()
        assert box.y1 <= page.y1, text.get_text()


@pytest.mark.parametrize(
    "draw",
    [
        lambda path: plots.timeline({"eager": []}, path),
        lambda path: plots.timeline({"eager": [e for e in step(5.0) if e.lane != GPU]}, path),
    ],
)
def test_empty_data_is_an_error_and_leaves_no_file(
    draw: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.raises(ValueError):
        draw(tmp_path / "x.png")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- timeline


def test_the_timeline_draws_eager_above_graph_on_one_axis_and_the_same_window_of_each() -> None:
    above, below = panels(once("timeline"))[:3], panels(once("timeline"))[3:]
    for group in (above, below):
        names = [axes._left_title.get_text().split(":")[0].split(",")[0] for axes in group]
        assert names == ["Eager", "Piecewise", "One graph"]
        assert len({axes.get_xlim() for axes in group}) == 1
    begin, end = below[0].get_xlim()
    assert end - begin == pytest.approx(60)
    assert begin < 100 < end  # the engine is done and the first kernel is launched in the window


def test_engines_that_begin_at_different_times_are_magnified_from_the_first_call_of_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = [TraceEvent(CPU, "schedule", 0.0, 700.0, "host")]
    late += [replace(event, start_us=event.start_us + 700.0) for event in step(5.0)]
    figures = watch(monkeypatch)
    plots.timeline({"early": step(5.0), "late": late}, tmp_path / "x.png", zoom_us=80)
    early, later = panels(figures[0])[2:]
    assert early.get_xlim() == later.get_xlim()
    assert early.get_xlim() == pytest.approx((-1.6, 78.4))  # 80 µs, the first call at 0
    done = [axes._left_title.get_text().split(": ")[1] for axes in (early, later)]
    assert done[0] == done[1]


def test_the_gpu_lane_is_filled_while_a_kernel_runs_and_empty_for_the_rest() -> None:
    for axes, events in zip(panels(once("timeline")), STEPS.values(), strict=False):
        gpu_ms = cpu_ms = 0.0
        for boxes in axes.patches:
            for corners in boxes.get_path().to_polygons():
                (left, low), (right, high) = corners.min(axis=0), corners.max(axis=0)
                assert len({tuple(corner) for corner in corners}) == 4
                if high < 1.01:  # the lane of the GPU is the lower one
                    gpu_ms += right - left
                else:
                    assert low > 1.0
                    cpu_ms += right - left
        assert gpu_ms * 1e3 == pytest.approx(busy_us(events, GPU))
        assert cpu_ms * 1e3 == pytest.approx(sum(e.duration_us for e in events if e.lane != GPU))


def test_the_timeline_writes_itl_idle_share_and_the_kernels_done_in_the_window() -> None:
    told = words(once("timeline"))
    # 100 of engine, 40 launches of 5, the last kernel, 10 to read back: 312 µs, 80 of them busy.
    assert "0.31 ms" in told
    assert f"Eager: GPU idle {1 - 80 / 312:.0%} of the step" in told
    # From 98.8 µs on, kernels end at 107, 112 ... 157; those launched every 2.5 µs, at 104.5 ...
    assert "Eager, from the first kernel on: 11 done in 60 µs" in told
    assert "One graph, from the first kernel on: 22 done in 60 µs" in told


def test_kernel_names_are_written_where_they_fit_and_left_out_where_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    launches = step(5.0)
    long = [replace(e, name="a_name_that_is_much_too_long_for_its_box") for e in launches]
    plots.timeline({"short": launches}, tmp_path / "x.png")
    plots.timeline({"long": long}, tmp_path / "y.png")
    short_names, long_names = (
        [text for text in panels(figure)[-1].texts if text.get_text()] for figure in figures
    )
    assert len(short_names) > 10
    assert not [text for text in long_names if text.get_text().startswith("a_name")]
    edge = panels(figures[0])[-1].get_window_extent()
    for text in short_names:
        box = text.get_window_extent()
        assert edge.x0 - 2 <= box.x0 <= box.x1 <= edge.x1 + 2
        assert edge.y0 <= box.y0 <= box.y1 <= edge.y1


def test_a_bar_is_as_long_as_its_step_and_its_parts_as_they_took() -> None:
    pieces = [patch.get_width() for patch in panels(once("step_bars"))[0].patches]
    assert pieces == pytest.approx([5.0, 0.06, 4.0, 0.009])
    assert "5.06 ms" in words(once("step_bars"))


# ---------------------------------------------------------------- crossover


def test_the_lines_are_the_curve_in_ms() -> None:
    above = panels(once("crossover"))[0]
    lines = {str(line.get_label()): line for line in above.get_lines()}
    given = {
        "eager": [p.eager.itl_us for p in CURVE.points],
        "piecewise graphs": [p.piecewise.itl_us for p in CURVE.points],
        "one full graph": [p.full.itl_us for p in CURVE.points],
        "floor: weights and KV, read once": [p.floor_us for p in CURVE.points],
    }
    for label, values in given.items():
        assert list(lines[label].get_xdata()) == [p.batch for p in CURVE.points]
        assert list(lines[label].get_ydata()) == pytest.approx([us / 1e3 for us in values])
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")
    low, high = above.get_ylim()
    assert low < min(p.floor_us for p in CURVE.points) / 1e3
    assert high > max(p.eager.itl_us for p in CURVE.points) / 1e3


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        (CURVE, "launch-bound below a batch of 8"),
        (curve(card="h200"), "launch-bound at every batch"),
        (curve(card="rtx4070", engine="transformers", host="desktop-2025"), "never launch-bound"),
    ],
)
def test_the_crossover_is_marked_where_it_is_on_the_page_and_told_in_any_case(
    curve: ItlCurve, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    plots.itl_curve(curve, tmp_path / "x.png")
    lines = [list(line.get_xdata()) for line in panels(figures[0])[0].get_lines()]
    marks = [at for at in lines if len(at) == 2]
    inside = 1 < curve.crossover <= curve.points[-1].batch
    assert marks == ([[curve.crossover] * 2] if inside else [])
    told = words(figures[0]).replace("\n", " ")
    assert says in told
    assert (f"crossover: batch {curve.crossover}" in told) is inside


def test_a_picture_of_another_kind_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"a\.txt"):
        with canvas(tmp_path / "a.txt", (4, 3), title="a", caption="b"):
            raise AssertionError("drawn")


def test_steps_of_a_notebook_stand_on_two_lanes_of_one_scale() -> None:
    steps = {"slow <3": step(30.0), "fast": step(5.0)}
    drawn = lanes_svg(steps)
    wide = [float(box) for box in re.findall(r'class="idle"[^/]*? width="([\d.]+)"', drawn)]
    longest, shortest = (max(e.end_us for e in events) - 7.0 for events in steps.values())
    assert wide[0] == wide[1] == RIGHT - LEFT
    assert wide[2] == pytest.approx(wide[0] * shortest / longest, abs=0.1)
    assert "slow &lt;3" in drawn
    assert drawn.count("40 launches") == 2
