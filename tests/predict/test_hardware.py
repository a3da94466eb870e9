"""Specs of devices: every figure is there, has a source, and is refused when it is not."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.predict.hardware import FIGURE_NAMES, KINDS, SPEC_FOLDER, load_spec, spec_names

GPUS = ("h200", "h100", "a100", "l4", "rtx4090", "rtx4070", "rtx3090", "b200")


def raw(name: str = "h200") -> dict[str, object]:
    return json.loads((SPEC_FOLDER / f"{name}.json").read_text())


def write(folder: Path, data: object) -> Path:
    path = folder / "mine.json"
    path.write_text(json.dumps(data))
    return path


def test_the_devices_of_the_course_ship_with_it() -> None:
    assert {*GPUS, "laptop-cpu"} <= set(spec_names())


@pytest.mark.parametrize("name", spec_names())
def test_every_shipped_figure_has_a_kind_and_a_checkable_source(name: str) -> None:
    spec = load_spec(name)
    assert spec.name == name
    for figure in FIGURE_NAMES:
        kind, source = spec.source(figure).split(": ", 1)
        assert kind in KINDS
        assert getattr(spec, figure) > 0
        # A number that somebody else found is worth its address; our own says what was measured.
        if kind in ("datasheet", "quoted") or (kind == "borrowed" and name in GPUS):
            assert "https://" in source, f"{name}: {figure}"
        if kind == "measured":
            assert re.search(r"20\d\d-\d\d-\d\d", source), f"{name}: {figure} says not when"


@pytest.mark.parametrize("name", GPUS)
def test_a_borrowed_figure_says_that_it_was_not_measured_here(name: str) -> None:
    spec = load_spec(name)
    for figure in FIGURE_NAMES:
        if spec.source(figure).startswith("borrowed"):
            assert "not yet measured on" in spec.source(figure)


@pytest.mark.parametrize("name", spec_names())
def test_a_copy_is_slower_than_the_datasheet_and_a_graph_node_closer_than_a_launch(
    name: str,
) -> None:
    spec = load_spec(name)
    assert spec.copy_bandwidth_gb_s < spec.bandwidth_gb_s
    assert spec.cpu_launch_us < spec.cpu_op_us
    assert spec.reserved_bytes < spec.vram_bytes
    if name != "laptop-cpu":  # where nothing is queued, a replayed list has the wider gaps
        assert spec.graph_gap_us < spec.stream_gap_us


@pytest.mark.parametrize("figure", FIGURE_NAMES)
def test_a_spec_with_a_missing_figure_is_refused_by_file_and_figure(
    tmp_path: Path, figure: str
) -> None:
    data = raw()
    del data[figure]
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {figure} is missing")):
        load_spec(path)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"value": 1.0, "kind": "measured"}, "must be"),
        ({"value": 1.0, "kind": "measured", "source": " "}, "no source"),
        ({"value": 1.0, "kind": "guessed", "source": "x"}, "kind 'guessed'"),
        ({"value": 0, "kind": "measured", "source": "x"}, "is 0, expected a number above 0"),
        ({"value": -3.5, "kind": "measured", "source": "x"}, "is -3.5, expected"),
        ({"value": True, "kind": "measured", "source": "x"}, "is True, expected"),
        ({"value": "5", "kind": "measured", "source": "x"}, "is '5', expected"),
        ({"value": float("nan"), "kind": "measured", "source": "x"}, "is nan, expected"),
        ({"value": float("inf"), "kind": "measured", "source": "x"}, "is inf, expected"),
        (5.1, "must be"),
    ],
)
def test_a_bad_figure_is_refused_by_name(tmp_path: Path, changed: object, says: str) -> None:
    path = write(tmp_path, {**raw(), "sync_us": changed})
    with pytest.raises(ValueError, match=re.escape(f"{path}: sync_us")) as error:
        load_spec(path)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_counts_and_bytes_must_be_whole(tmp_path: Path) -> None:
    bad = {"value": 1.5, "kind": "measured", "source": "x"}
    with pytest.raises(ValueError, match=r"queue_depth is 1\.5, expected a whole number"):
        load_spec(write(tmp_path, {**raw(), "queue_depth": bad}))
    assert isinstance(load_spec("h200").queue_depth, int)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({**raw(), "l2_byte": raw()["l2_bytes"]}, "unknown figure 'l2_byte'"),
        ({k: v for k, v in raw().items() if k != "name"}, "'name' is None"),
        ([1, 2], "holds list"),
    ],
)
def test_a_file_of_another_shape_is_refused(tmp_path: Path, data: object, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        load_spec(write(tmp_path, data))


def test_text_that_is_not_json_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("{name: h200")
    with pytest.raises(ValueError, match="not a JSON file"):
        load_spec(tmp_path / "mine.json")


def test_an_unknown_device_is_answered_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="h100, h200") as error:
        load_spec("h2000")
    assert "\n" not in str(error.value)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        load_spec(tmp_path / "nowhere.json")


def test_names_are_found_in_any_case() -> None:
    assert load_spec("RTX4090") == load_spec("rtx4090")


def test_a_changed_figure_does_not_keep_its_source() -> None:
    spec = replace(load_spec("h200"), cpu_op_us=1.0)
    assert spec.source("cpu_op_us") == "set by the program: not from a spec file"
    assert spec.source("sync_us") == load_spec("h200").source("sync_us")
    with pytest.raises(ValueError, match="no figure 'name'"):
        spec.source("name")


@given(st.floats(min_value=1e-6, max_value=1e12))
def test_any_positive_number_is_read_as_it_stands(value: float) -> None:
    with TemporaryDirectory() as folder:
        figure = {"value": value, "kind": "measured", "source": "a test"}
        spec = load_spec(write(Path(folder), {**raw(), "stream_gap_us": figure}))
    assert spec.stream_gap_us == value
    assert spec.source("stream_gap_us") == "measured: a test"
