"""A spec is card x host x engine: what their files must say, and where each figure comes from."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mini_engine.step.cards import (
    FACTORS,
    FIGURES,
    FOLDERS,
    Kind,
    intervals,
    load_sheet,
    load_spec,
    names,
)

SAMPLE = {"card": "h200", "host": "server", "engine": "vllm"}
SHIPPED = [(kind, name) for kind in FOLDERS for name in names(kind)]


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
        assert one.kind in get_args(Kind)
        # A number that somebody else found is worth its address, or the name of the document; our
        # own has its file (tests/bench/test_measured_figures.py).
        if one.kind in ("datasheet", "quoted"):
            assert re.search("https://|NVIDIA", one.source), where
        if one.kind == "fitted":
            assert "validate --fit" in one.source, where


# ---- what is refused


@pytest.mark.parametrize("kind", FIGURES)
def test_a_file_with_a_missing_figure_is_refused_by_file_and_figure(
    tmp_path: Path, kind: str
) -> None:
    data, figure = raw(kind), list(FIGURES[kind])[-1]
    del data[figure]
    path = write(tmp_path, data)
    with pytest.raises(ValueError, match=re.escape(f"{path}: {figure} ")):
        load_sheet(kind, path)


def figure(value: object, kind: str = "measured") -> dict[str, object]:
    return {"value": value, "kind": kind, "source": "x"}


@pytest.mark.parametrize(
    ("kind", "name", "changed"),
    [
        ("card", "vram_bytes", {"value": 1.0, "kind": "measured"}),
        ("card", "vram_bytes", figure(1.0, kind="guessed")),
        *(("card", "vram_bytes", figure(bad)) for bad in (0, -3.5, "5", float("nan"), 0.5)),
        ("card", "vram_bytes", 5.1),
        ("card", "queue_depth", figure(1.5)),
        ("card", "product_share", figure(1.01)),
        ("engine", "attention_share", figure(2)),
    ],
)
def test_a_bad_figure_is_refused_by_file_and_name(
    tmp_path: Path, kind: str, name: str, changed: object
) -> None:
    path = write(tmp_path, {**raw(kind), name: changed})
    with pytest.raises(ValueError, match=re.escape(f"{path}: {name}")):
        load_sheet(kind, path)


def test_an_engine_may_do_nothing_around_a_step(tmp_path: Path) -> None:
    nothing = {"value": 0, "kind": "measured", "source": "x"}
    path = write(tmp_path, {**raw("engine"), "ahead_ops": nothing, "request_ops": nothing})
    assert load_spec("h200", engine=path).ahead_us == 0


@pytest.mark.parametrize(
    ("kind", "changed", "field"),
    [
        ("card", {"vram_bites": 5}, "vram_bites"),
        ("card", {"name": None}, "name"),
        ("card", {"family": ["x"]}, "family"),
        ("card", {"engine": 5}, "engine"),
        ("host", {"sources": "a"}, "sources"),
        ("host", {"sources": [1]}, "sources"),
        ("engine", {"classes": {"a": "HALF"}}, "classes"),
    ],
)
def test_what_else_a_file_says_is_checked_too(
    tmp_path: Path, kind: str, changed: dict[str, object], field: str
) -> None:
    path = write(tmp_path, {**raw(kind), **changed})
    with pytest.raises(ValueError, match=f"{re.escape(str(path))}: .*{field}"):
        load_sheet(kind, path)


# ---- put together

# An engine may do nothing there; a card may have no PDL.
MAY_BE_NONE = {"host_step_us", "ahead_us", "request_us", "pdl_saves_us"}

cards, hosts, engines = (st.sampled_from(names(kind)) for kind in ("card", "host", "engine"))


@given(cards, hosts, engines)
def test_any_engine_runs_on_any_host_and_card(card: str, host: str, engine: str) -> None:
    spec = load_spec(card, host, engine)
    assert (spec.name, spec.host, spec.engine) == (card, host, engine)
    for figure in FACTORS:
        value = getattr(spec, figure)
        assert value > 0 or (value == 0 and figure in MAY_BE_NONE)
        kind, source = spec.source(figure).split(": ", 1)
        assert kind in get_args(Kind)
        assert source


def test_an_engines_work_is_counted_in_ops_of_the_host() -> None:
    """Twice as slow a host makes every figure of the CPU's own work twice as long."""
    op_us = load_sheet("host", "server")["op_us"]
    engine = load_sheet("engine", "vllm")
    spec = load_spec("h200", "server", "vllm")
    assert spec.cpu_op_us == engine["kernel_ops"] * op_us
    assert spec.live_op_us == engine["live_ops"] * op_us
    assert (spec.host_step_us, spec.ahead_us) == (0, engine["ahead_ops"] * op_us)
    assert spec.request_us == engine["request_ops"] * op_us
    assert load_spec("h200", "desktop-2025").cpu_op_us < spec.cpu_op_us


def test_without_a_choice_it_is_vllm_on_its_usual_host_and_numpy_on_the_laptop() -> None:
    assert load_spec("H200") == load_spec("h200", "Server", "vLLM")
    laptop = load_spec("laptop-cpu")
    assert (laptop.host, laptop.engine) == ("laptop", "numpy")
    assert load_spec("h200", engine="transformers").ops == "hf56"
    assert load_spec("h200", engine="launch-bound").ops == "fused5"


@pytest.mark.parametrize("name", names("card"))
def test_a_copy_is_slower_than_the_datasheet_and_a_graph_node_closer_than_a_launch(
    name: str,
) -> None:
    spec = load_spec(name)
    assert spec.link_gb_s < spec.copy_bandwidth_gb_s < spec.bandwidth_gb_s
    assert spec.product_gb_s < spec.bandwidth_gb_s
    assert spec.cpu_launch_us < spec.cpu_op_us
    assert spec.reserved_bytes < spec.vram_bytes
    if name != "laptop-cpu":  # where nothing is queued, a replayed list has the wider gaps
        assert spec.graph_gap_us < spec.stream_gap_us


# ---- what an interval is


def test_an_interval_depends_on_mode_and_batch_and_is_wider_for_eager() -> None:
    spec = load_spec("h200")
    widths = {}
    for one in intervals():
        if one.low is None or one.high is None:
            assert spec.interval(10.0, one.mode, one.most) is None
            continue
        low, high = spec.interval(10.0, one.mode, one.most) or (0, 0)
        assert (low, high) == (10 * one.low, 10 * one.high)
        assert low < 10 < high
        widths[one.mode, one.least] = high / low
    assert widths["NONE", 1] > widths["FULL", 1]
    assert widths["FULL", 9] > widths["FULL", 2]


def test_no_interval_is_told_where_too_few_have_measured_nor_an_end_below_the_floor() -> None:
    spec = load_spec("h200")
    assert spec.interval(10.0, "PIECEWISE", batch=500) is None
    assert spec.interval(10.0, "FULL", 1, floor=9.9) == (
        9.9,
        (spec.interval(10.0, "FULL") or "")[1],
    )


# ---- names and sources


def test_a_changed_figure_does_not_keep_its_source() -> None:
    spec = replace(load_spec("h200"), cpu_op_us=1.0)
    assert spec.source("cpu_op_us") == "set by the program: not from a file"
    assert spec.source("sync_us") == load_spec("h200").source("sync_us")
