"""`validate`: any file of points is judged, what is not known is named, and a host can be told."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from mini_engine.cli import as_json, main
from tests.cli.test_commands import check_terminals, found_by, json_of, shown
from tests.cli.test_refusals import refused

POINT = {
    "id": "known", "class": "vLLM eager", "model": "Qwen3-0.6B", "gpu": "h100", "batch": 1,
    "context": 300, "itl_ms": 14.0, "source": "a bench of my own", "host": "attic",
}  # fmt: skip
MINE = [
    POINT,
    {**POINT, "id": "graph", "class": "vLLM V1 graph full", "itl_ms": 2.0},
    {**POINT, "id": "larger", "model": "Qwen3-1.7B", "itl_ms": 14.5},
    {**POINT, "id": "other card", "gpu": "gaudi3"},
    {**POINT, "id": "other engine", "class": "TensorRT graph"},
    {**POINT, "id": "other model", "model": "gpt-5"},
]


def file_of(folder: Path, points: list[dict[str, Any]]) -> str:
    path = folder / "mine.json"
    path.write_text(json.dumps(points))
    return str(path)


def test_unknown_cards_engines_and_models_are_named_and_the_rest_goes_on(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, out = file_of(tmp_path, MINE), str(tmp_path / "out")
    result = json_of(capsys, "validate", "--points", file, "--out", out)
    assert [one["point"]["id"] for one in result["points"]] == ["known", "graph", "larger"]
    for one in result["points"]:
        assert one["low_ms"] < one["high_ms"] < 5 * one["low_ms"]
        assert (one["host"], one["host_known"]) == ("server", False)
        assert one["left_out_ms"] is None  # no fit has seen these
    card, engine, model = result["unknown"]
    assert card.startswith("other card: no card 'gaudi3', known are ")
    assert engine.startswith("other engine: no engine 'TensorRT graph', known are ")
    assert model.startswith("other model: no model 'gpt-5', known are ")
    assert result["summary"]["points"] == 3
    assert [one["name"] for one in result["classes"]] == ["vLLM V1 graph full", "vLLM eager"]
    [pair] = result["pairs"]
    assert (pair["slow"]["point"]["id"], pair["fast"]["point"]["id"]) == ("known", "graph")
    assert pair["measured"] == 7.0


def test_people_see_a_line_for_each_and_whose_host_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    words = ["validate", "--points", file_of(tmp_path, MINE), "--out", str(tmp_path / "out")]
    assert main(words) == 0
    out, _ = capsys.readouterr()
    for said in (
        "left out: other card: no card 'gaudi3'", "left out: other engine: no engine", "By class",
        "What a graph buys", "server, the usual one", "7.00 x",
    ):  # fmt: skip
        assert said in out
    for name in ("validate-points.png", "validate-errors.png"):
        assert (tmp_path / "out" / name).read_bytes().startswith(b"\x89PNG")


def test_every_shipped_point_is_judged_the_farthest_on_a_screen_and_all_with_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = found_by("validate")
    check_terminals(found)
    short, whole = shown(found, 300), shown(Namespace(**vars(found) | {"all": True}), 300)
    result = json.loads(json.dumps(vars(found), default=as_json))
    points = result["points"]
    assert (len(points), result["unknown"], len(result["classes"])) == (449, [], 16)
    assert all(one["left_out_ms"] for one in points)
    assert result["summary"]["median_error"] == pytest.approx(0.054, abs=0.001)
    assert {"share of A100", "vllm eager kernel"} <= {p["name"] for p in result["parameters"]}
    assert all(len(pair) == 3 for pair in result["inseparable"])
    points.sort(key=lambda one: abs(math.log1p(one["error"])))
    names = [one["point"]["id"] for one in points]
    assert [name for name in names if f"\n  {name} " in short] == names[-5:]
    assert all(f"\n  {name} " in whole for name in names)
    assert len(short.splitlines()) < 80


def test_a_fit_takes_the_shipped_points_alone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, out = file_of(tmp_path, MINE[:3]), str(tmp_path / "out")
    said = refused(capsys, "validate", "--points", file, "--out", out, "--fit")
    assert "--fit the shipped ones" in said
