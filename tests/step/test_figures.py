"""Files of figures: a card, a host and an engine each have their own, and nothing stands twice."""

from __future__ import annotations

import json
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.step.cards import FIGURES, FOLDERS, KINDS, load_sheet, load_spec, names

SAMPLE = {"card": "h200", "host": "server", "engine": "vllm"}
SHIPPED = [(kind, name) for kind in FOLDERS for name in names(kind)]
EVERY_FIGURE = [(kind, figure) for kind in FIGURES for figure in FIGURES[kind]]


def raw(kind: str, name: str | None = None) -> dict[str, Any]:
    return json.loads((FOLDERS[kind] / f"{name or SAMPLE[kind]}.json").read_text(encoding="utf-8"))


def write(folder: Path, data: object) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(data))
    return path


# ---- what ships


@pytest.mark.parametrize(("kind", "name"), SHIPPED)
def test_every_shipped_figure_has_a_kind_and_a_checkable_source(kind: str, name: str) -> None:
    sheet = load_sheet(kind, name)
    assert sheet.name == name
    assert set(sheet.figures) == set(FIGURES[kind])
    for figure, one in sheet.figures.items():
        where = f"{name}: {figure}"
        assert one.kind in KINDS
        # A number that somebody else found is worth its address, or the name of the document; our
        # own has its file (tests/bench/test_measured_figures.py).
        if one.kind in ("datasheet", "quoted"):
            assert re.search("https://|NVIDIA", one.source), where
        if one.kind == "fitted":
            assert "validate --fit" in one.source, where


def test_no_figure_has_two_homes() -> None:
    every = [name for kind in FIGURES for name in FIGURES[kind]]
    assert len(every) == len(set(every))


# ---- what is refused


@pytest.mark.parametrize(("kind", "figure"), EVERY_FIGURE)
def test_a_file_with_a_missing_figure_is_refused_by_file_and_figure(
    tmp_path: Path, kind: str, figure: str
) -> None:
    data = raw(kind)
    del data[figure]
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {figure} ")):
        load_sheet(kind, path)


def test_a_figure_in_another_kind_of_file_names_its_home(tmp_path: Path) -> None:
    for kind, home in ((k, h) for k in FIGURES for h in FIGURES if k != h):
        figure = next(iter(FIGURES[home]))
        path = write(tmp_path, {**raw(kind), figure: raw(home)[figure]})
        with pytest.raises(ValueError, match=f"{figure} .* {home}$"):
            load_sheet(kind, path)


@pytest.mark.parametrize(
    "changed",
    [
        {"value": 1.0, "kind": "measured"},
        {"value": 1.0, "kind": "measured", "source": "x", "on": "y"},
        {"value": 1.0, "kind": "measured", "source": " "},
        {"value": 1.0, "kind": "guessed", "source": "x"},
        {"value": 0, "kind": "measured", "source": "x"},
        {"value": -3.5, "kind": "measured", "source": "x"},
        {"value": True, "kind": "measured", "source": "x"},
        {"value": "5", "kind": "measured", "source": "x"},
        {"value": float("nan"), "kind": "measured", "source": "x"},
        {"value": float("inf"), "kind": "measured", "source": "x"},
        5.1,
    ],
)
def test_a_bad_figure_is_refused_by_file_and_name(tmp_path: Path, changed: object) -> None:
    path = write(tmp_path, {**raw("card"), "vram_bytes": changed})
    with pytest.raises(ValueError, match=re.escape(f"{path}: vram_bytes")):
        load_sheet("card", path)


@pytest.mark.parametrize(
    ("kind", "figure", "value"),
    [
        ("card", "queue_depth", 1.5),
        ("card", "vram_bytes", 0.5),
        ("card", "product_share", 1.01),
        ("engine", "attention_share", 2),
    ],
)
def test_bytes_and_counts_are_whole_and_a_share_is_at_most_one(
    tmp_path: Path, kind: str, figure: str, value: float
) -> None:
    one = {"value": value, "kind": "measured", "source": "x"}
    with pytest.raises(ValueError, match=f"{figure} is {value}"):
        load_sheet(kind, write(tmp_path, {**raw(kind), figure: one}))


def test_an_engine_may_do_nothing_around_a_step(tmp_path: Path) -> None:
    nothing = {"value": 0, "kind": "measured", "source": "x"}
    path = write(tmp_path, {**raw("engine"), "ahead_ops": nothing, "request_ops": nothing})
    assert load_spec("h200", engine=path).ahead_us == 0


@pytest.mark.parametrize(
    ("kind", "changed", "field"),
    [
        ("card", {"vram_bites": 5}, "vram_bites"),
        ("card", {"name": None}, "name"),
        ("card", {"name": "h\x1b[2J"}, "name"),
        ("card", {"family": ["x"]}, "family"),
        ("card", {"engine": 5}, "engine"),
        ("host", {"sources": "a"}, "sources"),
        ("host", {"sources": [1]}, "sources"),
        ("engine", {"classes": {"a": "HALF"}}, "classes"),
        ("engine", {"missed": {"FULL": 0.3}}, "missed"),
    ],
)
def test_what_else_a_file_says_is_checked_too(
    tmp_path: Path, kind: str, changed: dict[str, object], field: str
) -> None:
    path = write(tmp_path, {**raw(kind), **changed})
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*{field}"):
        load_sheet(kind, path)


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_any_positive_number_is_read_as_it_stands(value: float) -> None:
    with TemporaryDirectory() as folder:
        figure = {"value": value, "kind": "measured", "source": "a test"}
        sheet = load_sheet("host", write(Path(folder), {**raw("host"), "op_us": figure}))
    assert sheet["op_us"] == value
    assert sheet.figures["op_us"].source == "a test"
