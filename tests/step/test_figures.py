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

from mini_engine.step.figures import FIGURES, FOLDERS, KINDS, load_sheet, names
from mini_engine.step.hardware import load_spec

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
    with pytest.raises(ValueError, match=re.escape(f"{path}: {figure} is missing")):
        load_sheet(kind, path)


@pytest.mark.parametrize(("home", "figure"), EVERY_FIGURE)
def test_a_figure_in_another_kind_of_file_names_its_home(
    tmp_path: Path, home: str, figure: str
) -> None:
    for kind in FIGURES:
        if kind != home:
            path = write(tmp_path, {**raw(kind), figure: raw(home)[figure]})
            with pytest.raises(ValueError, match=f"it belongs to an? {home}$") as error:
                load_sheet(kind, path)
            assert f"{path}: {figure!r} is no figure of a" in str(error.value)


def test_a_host_is_not_taken_for_a_card() -> None:
    with pytest.raises(ValueError, match="is no figure of a card: it belongs to a host"):
        load_spec(FOLDERS["host"] / "server.json")


@pytest.mark.parametrize("kind", FIGURES)
def test_a_misspelt_figure_is_refused(tmp_path: Path, kind: str) -> None:
    figure = next(iter(FIGURES[kind]))
    data = raw(kind)
    path = write(tmp_path, {**data, f"{figure}s": data[figure]})
    with pytest.raises(ValueError, match="take it out or mend its name"):
        load_sheet(kind, path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"value": 1.0, "kind": "measured"}, "must be"),
        ({"value": 1.0, "kind": "measured", "source": "x", "on": "y"}, "must be"),
        ({"value": 1.0, "kind": "measured", "source": " "}, "no source"),
        ({"value": 1.0, "kind": "guessed", "source": "x"}, "kind 'guessed'"),
        ({"value": 0, "kind": "measured", "source": "x"}, "is 0, expected a number above 0"),
        ({"value": -3.5, "kind": "measured", "source": "x"}, "is -3.5, expected"),
        ({"value": True, "kind": "measured", "source": "x"}, "is True, expected"),
        ({"value": "5", "kind": "measured", "source": "x"}, "is '5', expected"),
        ({"value": float("nan"), "kind": "measured", "source": "x"}, "is nan, expected"),
        ({"value": float("inf"), "kind": "measured", "source": "x"}, "is inf, expected"),
        ({"value": 1e308, "kind": "measured", "source": "x"}, "is 1e+308, expected 1e-09 to 1e+15"),
        ({"value": 1e-308, "kind": "measured", "source": "x"}, "is 1e-308, expected 1e-09"),
        ({"value": 10**400, "kind": "measured", "source": "x"}, "is 1000000"),
        (5.1, "must be"),
    ],
)
@pytest.mark.parametrize("kind", FIGURES)
def test_a_bad_figure_is_refused_by_name(
    tmp_path: Path, kind: str, changed: object, says: str
) -> None:
    figure = next(name for name, rule in FIGURES[kind].items() if rule == "+" or rule == "+bytes")
    path = write(tmp_path, {**raw(kind), figure: changed})
    with pytest.raises(ValueError, match=re.escape(f"{path}: {figure}")) as error:
        load_sheet(kind, path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kind", "figure", "value", "says"),
    [
        ("card", "queue_depth", 1.5, r"1\.5, expected a whole number"),
        ("card", "vram_bytes", 0.5, r"0\.5, expected a whole number"),
        ("card", "product_share", 1.01, r"1\.01, expected a share, at most 1"),
        ("engine", "attention_share", 2, "2, expected a share, at most 1"),
    ],
)
def test_bytes_and_counts_are_whole_and_a_share_is_at_most_one(
    tmp_path: Path, kind: str, figure: str, value: float, says: str
) -> None:
    one = {"value": value, "kind": "measured", "source": "x"}
    with pytest.raises(ValueError, match=f"{figure} is {says}"):
        load_sheet(kind, write(tmp_path, {**raw(kind), figure: one}))


def test_an_engine_may_do_nothing_around_a_step(tmp_path: Path) -> None:
    nothing = {"value": 0, "kind": "measured", "source": "x"}
    path = write(tmp_path, {**raw("engine"), "ahead_ops": nothing, "request_ops": nothing})
    assert load_spec("h200", engine=path).ahead_us == 0


@pytest.mark.parametrize("text", ["name", "family"])
def test_words_are_words(tmp_path: Path, text: str) -> None:
    data = {name: value for name, value in raw("card").items() if name != text}
    with pytest.raises(ValueError, match=f"'{text}' is None, expected words"):
        load_sheet("card", write(tmp_path, data))


def test_a_file_of_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a JSON object"):
        load_sheet("card", write(tmp_path, [1, 2]))
    (tmp_path / "mine.json").write_text("{name: h200")
    with pytest.raises(ValueError, match="not JSON"):
        load_sheet("card", tmp_path / "mine.json")
    (tmp_path / "mine.json").write_text("[" * 100_000)
    for kind in FIGURES:
        with pytest.raises(ValueError, match="nested too deeply"):
            load_sheet(kind, tmp_path / "mine.json")


@pytest.mark.parametrize(
    ("kind", "changed", "says"),
    [
        ("card", {"engine": 5}, "'engine' is 5, expected words"),
        ("host", {"sources": "a"}, r"'sources' is 'a', expected a list"),
        ("host", {"sources": [1]}, "expected words in it"),
        ("engine", {"classes": {"a": 1}}, "expected words in it"),
        ("engine", {"classes": {"a": "HALF"}}, "'classes' has mode 'HALF', expected NONE or PIECE"),
        ("engine", {"missed": {"HALF": {"value": 1}}}, "'missed' has mode 'HALF', expected NONE"),
        ("engine", {"ops": "fused7"}, "mine.json: 'ops' is 'fused7', expected hf56 or fused9"),
        ("card", {"family": ["x" * 1000]}, r"'family' is \['x{50,60}\.\.\., expected words$"),
        ("engine", {"missed": []}, r"'missed' is \[\], expected an object"),
        ("engine", {"missed": {"FULL": 0.3}}, "missed 'FULL' must be"),
        ("engine", {"missed": {"FULL": {"value": 1e308}}}, "with a number from 0 to 10"),
    ],
)
def test_what_else_a_file_says_is_checked_too(
    tmp_path: Path, kind: str, changed: dict[str, object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        load_sheet(kind, write(tmp_path, {**raw(kind), **changed}))


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_any_positive_number_is_read_as_it_stands(value: float) -> None:
    with TemporaryDirectory() as folder:
        figure = {"value": value, "kind": "measured", "source": "a test"}
        sheet = load_sheet("host", write(Path(folder), {**raw("host"), "op_us": figure}))
    assert sheet["op_us"] == value
    assert sheet.figures["op_us"].source == "a test"
