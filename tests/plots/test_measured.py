"""What a benchmark measured, chosen and drawn: the numbers of the file, and a watermark where they
are no evidence. Rows are made up; nothing here is a measurement."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from mini_engine.records.measured import (
    ABLATION,
    PAYS,
    Origin,
    ablation,
    crossing_batch,
    curve,
    floor_curve,
    measured_steps,
    of_one_place,
    origin_of,
)

from mini_engine import plots
from mini_engine.bench.rows import Row
from mini_engine.plots.measured import STYLES
from tests.support.bench_rows import COPY_GB_S, LAWS, made_up, made_up_row, made_up_rows
from tests.support.figure_helpers import panels, png_size, watch, words

ROWS = made_up_rows()
STEPS = measured_steps(ROWS)
# A graph of which less and less is left as the batch grows, whatever is predicted for it.
FADING = measured_steps(
    made_up_row(variant, batch, us=(1000 + 10 * batch) * (1 + gain / batch))
    for batch in (1, 2, 4, 8, 16, 32, 64)
    for variant, gain in (("ours-eager", 0.5), ("ours-graph", 0.0))
)


def origin(rows: list[dict[str, Any]] = ROWS, **given: Any) -> Origin:
    return origin_of(vars(made_up(rows, **given)))


ON_A_GPU = origin(emulated=False)


def draw_waterfall(steps: list[Row], path: Path, of: Origin) -> None:
    plots.waterfall(ablation(steps, 1, COPY_GB_S), path, of)


DRAWINGS: dict[str, Callable[[list[Row], Path, Origin], None]] = {
    "itl": plots.itl_against_batch,
    "crossover": plots.measured_crossover,
    "waterfall": draw_waterfall,
}
each_figure = pytest.mark.parametrize("draw", DRAWINGS.values(), ids=DRAWINGS)


# ---------------------------------------------------------------- of every figure


@each_figure
def test_a_figure_is_a_large_png_and_the_same_bytes_twice(draw: Any, tmp_path: Path) -> None:
    once, again = tmp_path / "new" / "1.png", tmp_path / "2.png"
    draw(STEPS, once, ON_A_GPU)
    with matplotlib.rc_context({"font.size": 31}):
        draw(STEPS, again, ON_A_GPU)
    width, height = png_size(once)
    assert width >= 1200
    assert height >= 600
    assert once.read_bytes() == again.read_bytes()


@each_figure
def test_what_the_emulator_wrote_says_so_across_the_page_and_in_title_and_caption(
    draw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    draw(STEPS, tmp_path / "x.png", origin())
    draw(STEPS, tmp_path / "y.png", ON_A_GPU)
    title, caption, mark = (text.get_text() for text in figures[0].texts)
    assert title.startswith("Emulated, no evidence: ")
    assert "no evidence about any GPU" in caption.replace("\n", " ")
    assert mark == "emulated: no evidence"
    real = words(figures[1])
    assert "mulated" not in real
    assert "Measured on NVIDIA H200, 2026-11-21, commit abc" in real.replace("\n", " ")


@each_figure
def test_words_stay_on_the_page_and_off_each_other(
    draw: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    draw(STEPS, tmp_path / "x.png", ON_A_GPU)
    (figure,) = figures
    page, boxes = figure.bbox, []
    texts = [*figure.texts, *(text for axes in figure.axes for text in axes.texts)]
    for axes in figure.axes:
        legend = axes.get_legend()
        texts += legend.get_texts() if legend else []
        texts += [tick for tick in axes.get_xticklabels() + axes.get_yticklabels()
                  if axes.axison and tick.get_text() and in_sight(tick, axes)]  # fmt: skip
        texts += [axes.xaxis.label, axes.yaxis.label]
    for text in texts:
        if text.get_visible() and text.get_text():
            box = text.get_window_extent()
            assert page.x0 <= box.x0 <= box.x1 <= page.x1, text.get_text()
            assert page.y0 <= box.y0 <= box.y1 <= page.y1, text.get_text()
            boxes.append((text.get_text(), box))
    for i, (name, box) in enumerate(boxes):
        for other, beside in boxes[i + 1 :]:
            apart = (box.x1 <= beside.x0 + 1 or beside.x1 <= box.x0 + 1
                     or box.y1 <= beside.y0 + 1 or beside.y1 <= box.y0 + 1)  # fmt: skip
            assert apart, f"{name!r} lies over {other!r}"


def in_sight(tick: Any, axes: Any) -> bool:
    """Whether a tick's label belongs to a place inside the limits, and is not another's twin."""
    if not tick.get_visible() or not tick.get_window_extent().width:
        return False
    x, y = tick.get_position()
    shown_x, shown_y = sorted(axes.get_xlim()), sorted(axes.get_ylim())
    if tick in axes.get_xticklabels():
        return bool(shown_x[0] <= x <= shown_x[1]) and axes.get_xlabel() != ""
    return bool(shown_y[0] <= y <= shown_y[1])


# ---------------------------------------------------------------- ITL against batch


def lines_of(axes: Any) -> dict[str, Any]:
    """Label -> the line of an error bar or a plot."""
    found = {str(c.get_label()): c.lines[0] for c in axes.containers}
    return found | {str(line.get_label()): line for line in axes.get_lines()}


def test_each_variant_is_a_line_of_its_medians_above_and_of_its_throughput_below(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = watch(monkeypatch)
    plots.itl_against_batch(STEPS, tmp_path / "x.png", ON_A_GPU)
    above, below = panels(figures[0])
    lines = lines_of(above)
    shown = set(LAWS) - {"null"}
    assert set(lines) >= shown | {"physical floor"}
    assert "null" not in lines
    throughput = [list(line.get_ydata()) for line in below.get_lines()]
    for variant in shown:
        points = curve(STEPS, variant)
        assert list(lines[variant].get_xdata()) == [p.batch for p in points]
        assert list(lines[variant].get_ydata()) == pytest.approx([p.itl_us / 1e3 for p in points])
        tokens = [p.batch * 1e6 / p.itl_us for p in points]
        assert any(line == pytest.approx(tokens) for line in throughput)
    floor = [us / 1e3 for _, us in floor_curve(STEPS, COPY_GB_S)]
    assert list(lines["physical floor"].get_ydata()) == pytest.approx(floor)
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")


def test_the_floor_is_the_bytes_at_the_speed_of_a_copy() -> None:
    for batch, floor_us in floor_curve(STEPS, COPY_GB_S):
        moved = next(step.bytes_to_move for step in STEPS if step.batch == batch)
        assert floor_us == pytest.approx(moved / 4.3e6)


def test_every_variant_can_be_told_without_colours() -> None:
    assert len({marker for _, _, marker in STYLES.values()}) == len(STYLES)


def test_a_variant_of_one_batch_is_no_line_and_a_file_of_one_batch_no_picture(
    tmp_path: Path,
) -> None:
    alone = [step for step in STEPS if step.batch == 1]
    with pytest.raises(ValueError, match="a variant with results at two batches or more"):
        plots.itl_against_batch(alone, tmp_path / "x.png", ON_A_GPU)
    assert not list(tmp_path.iterdir())


def test_a_variant_that_failed_the_gate_is_not_drawn_and_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    wrong = {"gate": {"passed": False}}
    rows = [{**row, **wrong} if row["variant"] == "hf-compile" else row for row in ROWS]
    rows = [
        {**row, "status": "gate failed"} if row["variant"] == "graph-9" else row for row in rows
    ]
    of = origin(rows, emulated=False)
    plots.itl_against_batch(measured_steps(rows), tmp_path / "x.png", of)
    lines = lines_of(panels(figures[0])[0])
    assert not {"hf-compile", "graph-9"} & set(lines)
    told = words(figures[0]).replace("\n", " ")
    assert "Failed the gate, and not shown where they did: hf-compile, graph-9." in told


# ---------------------------------------------------------------- the crossover


def test_points_are_measured_and_lines_predicted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    plots.measured_crossover(FADING, tmp_path / "x.png", ON_A_GPU)
    above, below = panels(figures[0])
    lines = lines_of(above)
    for variant in ("ours-eager", "ours-graph"):
        points = curve(FADING, variant)
        measured, predicted = lines[f"{variant}, measured"], lines[f"{variant}, predicted"]
        assert measured.get_linestyle() == "None"
        assert list(measured.get_ydata()) == pytest.approx([p.itl_us / 1e3 for p in points])
        assert list(predicted.get_ydata()) == pytest.approx([p.predicted_us / 1e3 for p in points])
    pairs = zip(curve(FADING, "ours-eager"), curve(FADING, "ours-graph"), strict=True)
    saved = [1 - graph.itl_us / eager.itl_us for eager, graph in pairs]
    assert list(lines_of(below)["measured"].get_ydata()) == pytest.approx(saved)
    at = crossing_batch([p.batch for p in curve(FADING, "ours-eager")], saved)
    assert at is not None
    marked = [line for line in above.get_lines() if list(line.get_xdata()) == [at, at]]
    assert len(marked) == 1
    assert f"crossover: measured at batch {at:.0f}, predicted " in words(figures[0])
    assert f"A graph pays up to a batch of about {at:.0f}" in words(figures[0])


@pytest.mark.parametrize("batches", [(1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 8)])
def test_no_word_lies_over_a_measured_point(
    batches: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    steps = [step for step in STEPS if step.batch in batches]
    plots.measured_crossover(steps, tmp_path / "x.png", ON_A_GPU)
    plots.itl_against_batch(steps, tmp_path / "y.png", ON_A_GPU)
    plots.measured_crossover(FADING, tmp_path / "z.png", ON_A_GPU)
    for figure in figures:
        boxes = [text.get_window_extent() for axes in figure.axes for text in axes.texts]
        boxes += [axes.get_legend().get_window_extent() for axes in figure.axes
                  if axes.get_legend()]  # fmt: skip
        for axes in panels(figure):
            for line in (*axes.get_lines(), *(c.lines[0] for c in axes.containers)):
                if line.get_marker() in ("None", "", None):
                    continue
                for x, y in axes.transData.transform(line.get_xydata()):
                    assert not any(box.contains(x, y) for box in boxes), line.get_label()


def test_the_crossover_takes_both_variants_at_two_batches(tmp_path: Path) -> None:
    some = [s for s in STEPS if s.batch == 1 or s.variant == "ours-eager"]
    with pytest.raises(ValueError, match="ours-eager and ours-graph with results at two batch"):
        plots.measured_crossover(some, tmp_path / "x.png", ON_A_GPU)


def test_the_crossover_lies_on_a_straight_line_between_measured_batches() -> None:
    at = crossing_batch([1, 4, 16], [0.4, 0.10, 0.0])
    assert at == pytest.approx(4 * 4**0.5)  # half way down from 10% to 0%, over log(batch)
    assert crossing_batch([1, 4], [0.4, 0.2]) is None
    assert crossing_batch([2, 4], [0.01, 0.02]) == 2
    assert crossing_batch([1, 2, 4], [0.01, 0.3, 0.0]) == pytest.approx(2 * 2 ** (0.25 / 0.3))


@given(st.lists(st.floats(-0.5, 0.95), min_size=2, max_size=9))
def test_after_the_crossover_no_measured_batch_pays(saved: list[float]) -> None:
    batches = [2**i for i in range(len(saved))]
    at = crossing_batch(batches, saved)
    if at is None:
        assert saved[-1] >= PAYS
    else:
        assert batches[0] <= at <= batches[-1] * (1 + 1e-9)
        assert all(s < PAYS for b, s in zip(batches, saved, strict=True) if b > at * (1 + 1e-9))


# ---------------------------------------------------------------- the waterfall


def test_the_ladder_goes_down_to_the_floor_and_its_savings_add_up() -> None:
    ladder = ablation(STEPS, 1, COPY_GB_S)
    assert [idea.row.variant for idea in ladder.ideas] == [variant for variant, _ in ABLATION]
    first, last = ladder.ideas[0].row, ladder.ideas[-1].row
    assert sum(idea.saved_us for idea in ladder.ideas) == pytest.approx(first.itl_us - last.itl_us)
    assert ladder.to_the_floor_us == pytest.approx(last.itl_us - ladder.floor_us)
    assert ladder.left_out == ()


def test_each_idea_is_labelled_with_what_it_saves_and_its_share_of_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    ladder = ablation(STEPS, 1, COPY_GB_S)
    plots.waterfall(ladder, tmp_path / "x.png", ON_A_GPU)
    told = words(figures[0]).splitlines()
    for idea in ladder.ideas[1:]:
        assert f"{idea.saved_us:,.0f}" in told
        assert f"{idea.row.percent_of_copy:.0f}%" in told
        assert f"{idea.row.itl_us:,.0f}" in told
    assert f"{ladder.to_the_floor_us:,.0f} left" in told
    labels = [tick.get_text() for tick in panels(figures[0])[0].get_yticklabels()]
    assert labels[:-1] == [label for _, label in ABLATION]
    bars = [bar for bar in panels(figures[0])[0].patches if bar.get_height() > 0]
    for bar, idea in zip(bars, ladder.ideas[1:], strict=False):
        ends = bar.get_x(), bar.get_x() + bar.get_width()
        assert ends == pytest.approx((idea.row.itl_us, idea.row.itl_us + idea.saved_us))


def test_an_idea_that_loses_is_hatched_and_one_without_a_result_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    rows = [made_up_row(variant, 1, us=us) for variant, us in
            (("ours-eager", 2000.0), ("ours-graph", 700.0), ("graph-5", 750.0))]  # fmt: skip
    plots.waterfall(ablation(measured_steps(rows), 1, COPY_GB_S), tmp_path / "x.png", ON_A_GPU)
    hatched = [bar.get_hatch() for bar in panels(figures[0])[0].patches]
    assert hatched == [None, "///", None]
    told = words(figures[0]).replace("\n", " ")
    assert "left out: transformers, eager, 9 Triton kernels a layer, with PDL, 8 steps" in told
    assert "−" in told


def test_one_idea_is_no_ladder() -> None:
    with pytest.raises(
        ValueError, match="1 of its variants with a result at batch 1, it takes two"
    ):
        ablation([s for s in STEPS if s.variant == "ours-graph"], 1, COPY_GB_S)


# ---------------------------------------------------------------- which rows


def test_pictures_are_of_the_place_with_the_most_batches() -> None:
    rows = [
        made_up_row("ours-graph", 1, 128),
        made_up_row("ours-graph", 1, 512),
        made_up_row("ours-graph", 2, 512),
        made_up_row("ours-graph", 1, 128, "qwen3-1.7b"),
    ]
    steps = measured_steps(rows)
    assert {(s.shape, s.context) for s in of_one_place(steps)} == {("qwen3-0.6b", 512)}
    assert len(of_one_place(steps, shape="qwen3-1.7b")) == 1
    assert len(of_one_place(steps, context=128)) == 1  # the first of two equals
    with pytest.raises(ValueError, match="no variant has a result of qwen3-9b at context any"):
        of_one_place(steps, shape="qwen3-9b")
    with pytest.raises(ValueError, match=r"no variant has a result$"):
        of_one_place([])


def test_the_caption_tells_laps_and_processes() -> None:
    one = [made_up_row("ours-graph", 1)]
    three = [made_up_row("ours-graph", 1, processes=3)]
    assert origin(one).laps == "medians of 8 laps of 32 dependent steps"
    assert origin(three).laps == "means over 3 processes of medians of 8 laps of 32 dependent steps"
    assert origin(one + three).laps.startswith("means over 1 to 3 processes of medians")
    assert "4,300 GB/s" in origin(one).floor_caption()
    assert not math.isnan(origin(one).copy_gb_s)
