"""`validate`: any file of points is judged, what is not known is named, and a host can be told."""

from __future__ import annotations

import json
import math
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from mini_engine.cli import as_json, main
from mini_engine.step.cards import FOLDERS
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


def test_a_host_told_from_one_point_predicts_the_others_of_that_host(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, out = file_of(tmp_path, MINE[:3]), str(tmp_path / "out")
    words = ("validate", "--points", file, "--out", out)
    blind, told = json_of(capsys, *words), json_of(capsys, *words, "--host-from", "known")
    names = [one["point"]["id"] for one in told["points"]]
    assert names == ["graph", "larger"]  # "known" is judged no more
    before, after = blind["points"][-1], told["points"][-1]
    assert (after["host"], after["host_known"]) == ("the host of known", True)
    assert abs(after["error"]) < 0.05 < abs(before["error"])


def test_every_shipped_point_is_judged_the_farthest_on_a_screen_and_all_with_all(
    tmp_path: Path,
) -> None:
    found = found_by("validate", "--out", str(tmp_path))
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
    assert "told by data" in whole
    assert "told by data" not in short
    assert len(short.splitlines()) < 80


@pytest.mark.parametrize(
    ("more", "says"),
    [
        (["--host-from", "nobody"], "--host-from nobody: no such point in"),
        (["--host-from", "graph"], "graph is vLLM V1 graph full: a host is told from an eager"),
        (["--fit"], "--fit uses the shipped points"),
    ],
)
def test_bad_words_get_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, more: list[str], says: str
) -> None:
    file, out = file_of(tmp_path, MINE[:3]), str(tmp_path / "out")
    assert says in refused(capsys, "validate", "--points", file, "--out", out, *more)


def test_a_file_of_unknown_points_alone_says_what_is_not_known(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = file_of(tmp_path, MINE[3:4])
    said = refused(capsys, "validate", "--points", file, "--out", str(tmp_path / "out"))
    assert "nothing to judge: other card: no card 'gaudi3'" in said


def test_a_missing_file_and_a_bad_point_get_one_line(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert "nowhere.json" in refused(capsys, "validate", "--points", str(tmp_path / "nowhere.json"))
    file = file_of(tmp_path, [{**POINT, "itl_ms": 0}])
    assert "point 1: itl_ms is 0" in refused(capsys, "validate", "--points", file)


def test_points_in_few_bits_and_on_a_card_of_ones_own_are_judged(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    card = json.loads((FOLDERS["card"] / "rtx4090.json").read_text(encoding="utf-8"))
    (tmp_path / "mine.json").write_text(json.dumps({**card, "name": "My 4090"}))
    point = {**POINT, "id": "few", "gpu": "My 4090", "model": "qwen3-8b", "quant": "int4"}
    (tmp_path / "points.json").write_text(json.dumps([point]))
    words = ["--points", str(tmp_path / "points.json"), "--spec", str(tmp_path / "mine.json")]
    assert main(["validate", *words, "-o", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["unknown"] == []
    assert [one["name"] for one in found["classes"]] == [f"{POINT['class']}, int4"]
