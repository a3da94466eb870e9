"""Measuring in labs 13, 14 and 16: said before shown, measured on a GPU only, kept in the ledger.

A GPU's file is made up in the shape that a real run writes, and vLLM is a small program of that
name which logs, serves and saves in the formats of vLLM 0.33.
"""

from __future__ import annotations

import io
import os
import socket
import stat
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")


from labs.lab14_measure_itl.measure import RACE as ITL_RACE
from labs.lab16_vllm import measure as vllm_measure
from labs.measuring import ledger, step_timing
from labs.measuring.step_timing import Race, title
from mini_engine.bench import evidence
from mini_engine.bench.rows import GATE_FAILED, Interval, Row
from tests.support.bench_rows import made_up, made_up_row
from tests.support.documents import ROOT

SAID = ["--predict", "batch=1 eager=2.0 full=1.5 fused=0.5", "--predict", "batch=8 full=2"]
ROWS = [made_up_row(variant, batch) for batch in (1, 8) for variant in ITL_RACE.variants.values()]
Words = list[str]


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "stdin", io.StringIO())
    return tmp_path / "mine"


@pytest.fixture
def race(tmp_path: Path) -> Race:
    """Lab 14's, with a folder of its own for captured runs."""
    folder = tmp_path / ITL_RACE.folder.name
    folder.mkdir()
    return replace(ITL_RACE, folder=folder)


def bench_that_writes(
    monkeypatch: pytest.MonkeyPatch, rows: list[Any], *, emulated: bool
) -> list[Words]:
    """`mini_engine.cli.main` writes these rows where -o says. Returns the words it is given."""
    asked: list[Words] = []

    def main(words: Words) -> int:
        asked.append(list(words))
        out = Path(words[words.index("-o") + 1])
        evidence.write_measurement(out, made_up(rows, emulated=emulated))
        return 0

    monkeypatch.setattr(step_timing.cli, "main", main)
    reason = "PyTorch finds no CUDA GPU here" if emulated else None
    monkeypatch.setattr(step_timing, "why_not", lambda: reason)
    return asked


# ---------------------------------------------------------------- said first


def test_nothing_is_shown_to_who_has_said_nothing(
    race: Race, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = bench_that_writes(monkeypatch, ROWS, emulated=False)
    assert step_timing.main(race, []) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert "Say first" in said.err
    assert (asked, ledger.entries()) == ([], [])


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("eager=2.0", "batch=1 first"),
        ("batch=1 eager=two", "eager=two"),
        ("batch=1 megakernel=1.0", "megakernel"),
        ("batch=3 eager=1.0", "measured are 1 and 8"),
        ("batch=1 eager=-1", "above zero"),
    ],
)
def test_a_prediction_that_is_none_is_refused_by_its_word(
    text: str, says: str, race: Race, capsys: pytest.CaptureFixture[str]
) -> None:
    assert step_timing.main(race, ["--predict", text]) == 2
    assert says in capsys.readouterr().err
    assert ledger.entries() == []


# ---------------------------------------------------------------- measured, or not


def test_on_a_gpu_predictions_are_closed_by_the_medians_of_the_run(
    race: Race, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = bench_that_writes(monkeypatch, ROWS, emulated=False)
    assert step_timing.main(race, [*SAID, "--spec", "mine.json"]) == 0
    assert asked[0][:4] == ["bench", "--quick", "--device", "cuda"]
    assert asked[0][asked[0].index("--spec") + 1] == "mine.json"
    entries = ledger.entries()
    assert len(entries) == 4
    for entry in entries:
        name, batch = entry.what.rpartition(" ")[2], 1 if "batch 1," in entry.what else 8
        (row,) = (r for r in ROWS if (r["variant"], r["batch"]) == (race.variants[name], batch))
        assert entry.measured == pytest.approx(row["itl"]["median"] / 1e3)
        assert entry.low == pytest.approx(row["itl"]["low"] / 1e3)
        assert entry.on == "NVIDIA H200"
    said = capsys.readouterr().out
    assert "you said" in said
    assert "batch 1: full takes" in said
    assert (home / "ledger.png").exists()


def test_what_the_emulator_writes_closes_nothing_and_says_so(
    race: Race, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = bench_that_writes(monkeypatch, ROWS, emulated=True)
    assert step_timing.main(race, SAID) == 0
    assert "cpu" in asked[0]
    assert all(entry.open for entry in ledger.entries())
    said = capsys.readouterr().out
    assert "EMULATED" in said
    assert "Not yet measured" in said
    assert "mini_engine bench --quick --device cuda" in said


def test_a_captured_run_is_shown_and_closes_predictions_too(
    race: Race, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench_that_writes(monkeypatch, ROWS, emulated=True)
    evidence.write_measurement(race.folder / "captured/h200.json", made_up(ROWS, emulated=False))
    assert step_timing.main(race, SAID) == 0
    said = capsys.readouterr().out
    assert "Captured on NVIDIA H200, 2026-11-21, by" in said
    assert "Not yet measured" not in said
    assert {entry.on for entry in ledger.entries()} == {"NVIDIA H200, captured 2026-11-21"}


def test_a_variant_that_failed_its_gate_has_no_time_and_its_prediction_stays_open(
    race: Race, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = Row("qwen3-0.6b", 1, 512, "graph-5", GATE_FAILED, "wrong logits", {"passed": False})
    rows = [bad.as_json() if (r["variant"], r["batch"]) == ("graph-5", 1) else r for r in ROWS]
    bench_that_writes(monkeypatch, rows, emulated=False)
    assert step_timing.main(race, SAID) == 0
    assert [entry.what for entry in ledger.entries() if entry.open] == [title(1, "fused")]
    assert "gate failed" in capsys.readouterr().out


def test_intervals_that_overlap_are_called_no_difference(race: Race) -> None:
    rows = [Row.from_json(row) for row in ROWS]
    same = [replace(row, itl=Interval(100.0, 90.0, 110.0, 8)) for row in rows]
    assert all("no difference" in line for line in step_timing.notes(race, same))
    apart = [
        replace(row, itl=Interval(100.0 / i, 99.0 / i, 101 / i, 8)) for i, row in enumerate(rows, 1)
    ]
    assert not any("no difference" in line for line in step_timing.notes(race, apart))


# ---------------------------------------------------------------- lab 16

FAKE_VLLM = '''#!{python}
"""Stands in for vLLM: logs, serves /health, saves results."""
import http.server, json, random, sys
words = sys.argv[1:]
def after(name):
    return words[words.index(name) + 1]
if words[0] == "serve":
    sys.path.insert(0, {root!r})
    from labs.lab16_vllm.written_logs import bar, start_up
    from mini_engine.dispatch.default_ladder import default_capture_sizes
    limit = int(after("--max-num-seqs"))
    graphs = not ({{"--enforce-eager", "-cc.cudagraph_mode=NONE"}} & set(words))
    sizes = default_capture_sizes(limit, int(after("--max-num-batched-tokens"))) if graphs else []
    full = sum(size <= limit for size in sizes)
    compiled = "NONE" if "--enforce-eager" in words else "VLLM_COMPILE"
    mode = "FULL_AND_PIECEWISE" if graphs else "NONE"
    bars = bar("PIECEWISE", len(sizes)) + bar("FULL", 2)
    bars += bar("PIECEWISE", len(sizes)) + bar("FULL", full)
    print(start_up(compiled, mode, sizes, bars if graphs else ""), flush=True)
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
    http.server.HTTPServer(("127.0.0.1", int(after("--port"))), Health).serve_forever()
rng = random.Random(1)
count, tokens = int(after("--num-prompts")), int(after("--random-output-len"))
itls = [[rng.uniform(0.001, 0.002) for _ in range(tokens - 1)] for _ in range(count)]
result = {{"itls": itls, "ttfts": [0.03] * count, "output_lens": [tokens] * count,
          "latencies": [0.03 + sum(gaps) for gaps in itls], "errors": [""] * count}}
json.dump(result, open(after("--result-filename"), "w"))
'''


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A program named vllm on the PATH, and a GPU by name."""

    def put() -> None:
        program = tmp_path / "bin" / "vllm"
        program.parent.mkdir()
        text = FAKE_VLLM.format(python=sys.executable, root=str(ROOT))
        program.write_text(text)
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
        monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
        monkeypatch.setattr(vllm_measure, "nvidia_gpu", lambda: {"name": "NVIDIA H200"})
        of_h200 = {"name": "NVIDIA H200", "driver_version": "580"}
        monkeypatch.setattr(evidence, "_gpu", of_h200.get)

    return put


@pytest.fixture
def port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        number: int = free.getsockname()[1]
    return number


def is_served(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_three_servers_are_started_read_measured_and_ended(
    install: Callable[..., None], port: int, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    install()
    predict = [
        "--predict",
        "batch=1 eager=2 compiled=2 graphs=1.5",
        "--predict",
        "batch=8 graphs=2",
    ]
    assert vllm_measure.main(["--port", str(port), *predict]) == 0
    assert not is_served(port)
    said = capsys.readouterr().out
    assert said.count("as our policy says") == 6
    assert "NOT as our policy says" not in said
    assert "19 sizes" in said
    assert "{'PIECEWISE': 19, 'FULL': 11}" in said
    assert [entry.open for entry in ledger.entries()] == [False] * 4
    kept = evidence.load_evidence(home / "lab16_vllm" / "vllm.json")
    variants = kept.figures["variants"]
    assert list(variants) == ["eager", "compiled", "graphs"]
    for entry in ledger.entries():
        variant, batch = entry.what.rpartition(" ")[2], "1" if "batch 1," in entry.what else "8"
        told = variants[variant]["latency"][batch]["median_itl_ms"]
        assert entry.measured == pytest.approx(told, rel=1e-5)  # six digits are in the file
        assert entry.measured == pytest.approx(1.5, rel=0.1)


def test_without_vllm_every_command_and_what_to_expect_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    predict = ["--predict", "batch=1 graphs=1.5"]
    assert vllm_measure.main(predict) == 0
    said = capsys.readouterr().out
    assert "Not yet measured" in said
    assert "19 sizes, up to 128: {'PIECEWISE': 19, 'FULL': 11}" in said
    assert "You said, in ms: batch 1 graphs 1.5." in said
    for words in ("--enforce-eager", "-cc.cudagraph_mode=NONE", "--save-detailed"):
        assert words in said
    assert [entry.open for entry in ledger.entries()] == [True]
