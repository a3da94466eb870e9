"""What a benchmark measured, chosen and drawn: the numbers of the file, and a watermark where they
are no evidence. Rows are made up; nothing here is a measurement."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from mini_engine import plots
from mini_engine.bench.evidence import Measurement
from mini_engine.bench.rows import Row, curve, measured_steps, of_one_place
from mini_engine.plots.measured import STYLES
from tests.support.bench_rows import COPY_GB_S, LAWS, made_up, made_up_row, made_up_rows
from tests.support.figure_helpers import panels, watch, words


@cache
def steps() -> list[Row]:
    return measured_steps(made_up_rows())


def origin(emulated: bool = False) -> Measurement:
    return made_up(made_up_rows(), emulated=emulated)


def test_what_the_emulator_wrote_says_so_across_the_page_and_in_title_and_caption(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    plots.itl_against_batch(steps(), tmp_path / "x.png", origin(emulated=True))
    plots.itl_against_batch(steps(), tmp_path / "y.png", origin())
    title, caption, mark = (text.get_text() for text in figures[0].texts)
    assert title.startswith("Emulated, no evidence: ")
    assert "no evidence about any GPU" in caption.replace("\n", " ")
    assert mark == "emulated: no evidence"
    real = words(figures[1])
    assert "mulated" not in real
    assert "Measured on NVIDIA H200, 2026-11-21, commit abc" in real.replace("\n", " ")


def lines_of(axes: Any) -> dict[str, Any]:
    """Label -> the line of an error bar or a plot."""
    found = {str(c.get_label()): c.lines[0] for c in axes.containers}
    return found | {str(line.get_label()): line for line in axes.get_lines()}


def test_each_variant_is_a_line_of_its_medians_over_the_floor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures: list[Figure] = watch(monkeypatch)
    plots.itl_against_batch(steps(), tmp_path / "x.png", origin())
    (above,) = panels(figures[0])
    lines = lines_of(above)
    shown = set(LAWS) - {"null"}
    assert set(lines) >= shown | {"physical floor"}
    assert "null" not in lines
    for variant in shown:
        points = curve(steps(), variant)
        assert list(lines[variant].get_xdata()) == [p.batch for p in points]
        assert list(lines[variant].get_ydata()) == pytest.approx([p.itl_us / 1e3 for p in points])
    floor = [p.bytes_to_move / COPY_GB_S / 1e6 for p in points]
    assert list(lines["physical floor"].get_ydata()) == pytest.approx(floor)
    assert (above.get_xscale(), above.get_yscale()) == ("log", "log")


def test_every_variant_can_be_told_without_colours() -> None:
    assert len({marker for _, _, marker in STYLES.values()}) == len(STYLES)


def test_a_variant_of_one_batch_is_no_line_and_a_file_of_one_batch_no_picture(
    tmp_path: Path,
) -> None:
    alone = [step for step in steps() if step.batch == 1]
    with pytest.raises(ValueError, match="two batches"):
        plots.itl_against_batch(alone, tmp_path / "x.png", origin())
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("batches", [(1, 2, 4, 8, 16, 32, 64, 128, 256), (1, 8)])
def test_no_word_lies_over_a_measured_point(
    batches: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = watch(monkeypatch)
    some = [step for step in steps() if step.batch in batches]
    plots.itl_against_batch(some, tmp_path / "x.png", origin())
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
    assert of_one_place([steps[3], steps[0]]) == [steps[3]]  # the first of two equals
    with pytest.raises(ValueError, match="no variant has a result"):
        of_one_place([])
