"""Claims about `--json`: a version, the fields that are written down, one unit for each kind of
quantity."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_engine.cli import COMMANDS, main
from mini_engine.cli.json_schema import FIELDS, VERSION, document, errors, in_units

LINES = (
    "crossover --max-batch 2 --ladder 1,2",
    "ladder",
    "ladder --capture-sizes 1,4 --batch 3 --histogram 3:5 --rungs 2",
    "ladder --mode NONE",
    "capacity",
    "capacity --vram-gb 12 --trace",
    "serve",
    "serve --mode NONE --preemption swap --kv-blocks 600 --prefix-caching",
    "trace --mode FULL",
    "generate --mode NONE --max-new-tokens 2 --prompt Return",
    "validate --points points.json",
    "bench --against list",
    "bench --device cpu --batch 1 --rounds 2 --steps 1 --arms ours-eager -o bench.json",
    "gpu environment --device cpu -o environment.json",
)


@pytest.mark.parametrize("line", LINES)
def test_each_command_prints_what_the_schema_says(
    line: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    point = {
        "id": "mine", "class": "vLLM V1 graph full", "model": "qwen3-0.6b", "gpu": "h200",
        "batch": 1, "context": 1024, "itl_ms": 1.5, "source": "a test",
    }  # fmt: skip
    Path("points.json").write_text(json.dumps([point]))
    assert main([*line.split(), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["schema_version"] == VERSION
    assert printed["command"] == line.split()[0]
    assert errors(printed["command"], printed) == []


def test_the_schema_sees_what_leaves_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["capacity", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert errors("capacity", printed) == []
    assert errors("capacity", printed | {"new": 1}) == ["new is in no schema"]
    assert errors("capacity", printed | {"fits": "yes"}) == ["fits is 'yes', expected a truth"]
    assert errors("capacity", printed | {"predicted": {"itl_ms": 1}}) == [
        "itl_ms has a unit of its own"
    ]
    assert errors("capacity", {k: v for k, v in printed.items() if k != "gpu"}) == [
        "gpu is missing"
    ]


def test_every_command_has_a_schema() -> None:
    assert set(FIELDS) == set(COMMANDS)


def test_times_are_in_us_and_memory_in_bytes_wherever_they_stand() -> None:
    told = {
        "a_ms": 1.5, "b_s": [1, None], "c_mib": 2, "d_gb_s": 3, "e_per_s": 4, "f_us": 5,
        "rows": [{"g_ns": 7.0, "h_mb": 1.5}], "i_ms": None, "j_us": {"median": 8, "laps": 3},
    }  # fmt: skip
    assert in_units(told) == {
        "a_us": 1500, "b_us": [1e6, None], "c_bytes": 2 << 20, "d_gb_s": 3, "e_per_s": 4, "f_us": 5,
        "rows": [{"g_us": pytest.approx(0.007), "h_bytes": 1.5e6}], "i_us": None,
        "j_us": {"median": 8, "laps": 3},
    }  # fmt: skip
    assert document("ladder", {}) == {"schema_version": 1, "command": "ladder"}
