"""The last pages of a run: forty lines, and the tables that evidence fills in."""

from __future__ import annotations

import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mini_engine.bench.bars import BARS
from mini_engine.bench.chain import KERNELS
from mini_engine.bench.evidence import EMULATED_GPU, Measurement, write_measurement
from mini_engine.bench.first_run import MODELS
from mini_engine.bench.publish import (
    BARS_PAGE,
    EVIDENCE,
    FRONT_PAGE,
    KERNELS_PAGE,
    NOT_YET,
    _results,
    filled,
    publish,
)
from mini_engine.bench.stages import CUT, DONE, FAILED, Outcome
from mini_engine.bench.summary import EMULATED, MOST_LINES, WIDTH, summary
from tests.support.bench_rows import made_up, made_up_row

ROOT = Path(__file__).parents[2]
ARMS = ("graph-5-pdl", "graph-5", "graph-9", "ours-graph", "ours-eager", "hf-eager", "null")


def measurement(kind: str, figures: dict[str, Any], gpu: str = "NVIDIA H200") -> Measurement:
    return Measurement(
        kind, gpu == EMULATED_GPU, gpu, "580.1", "2.11.0", "3.6.0", "2026-11-22T09:00:00+00:00",
        "abc1234", "python -m mini_engine gpu", figures,
    )  # fmt: skip


def link(kernel: str, us: float, shape: str = MODELS[0]) -> dict[str, Any]:
    interval = {"median": us, "low": us, "high": us, "samples": 6, "processes": 1}
    return {
        "shape": shape, "context": 512, "kernel": kernel, "launches": 28,
        "bytes": 4.2e6, "alone": interval, "left_out": interval, "gb_s": 4.2e3 / us,
        "latency_us": us - 1,
    }  # fmt: skip


def a_run(folder: Path, gpu: str = "NVIDIA H200") -> None:
    null = {name: {"median": 1.3} for name in ("stream_us", "graph_us", "pdl_us")}
    environment = {"machine": {}, "copy_bandwidth_gb_s": {"median": 4300.0}, "null_kernel": null}
    write_measurement(folder / "environment.json", measurement("environment", environment, gpu))
    rows = [made_up_row(arm, 1, shape=shape) for shape in MODELS for arm in ARMS]
    bench = made_up(rows)
    write_measurement(folder / "bench.json", measurement("bench", dict(bench.figures), gpu))
    links = [link(kernel, 2.0 + at) for at, kernel in enumerate(KERNELS)]
    links += [link(KERNELS[0], 98.0, shape="qwen3-1.7b")]
    copy = {"copy_bandwidth_gb_s": {"median": 4300.0}}
    write_measurement(folder / "chain.json", measurement("chain", {**copy, "links": links}, gpu))


OUTCOMES = [
    Outcome("environment", DONE, 9.0),
    Outcome("arms", CUT, 150.0, note="its 150 s were over"),
    Outcome("pytest", FAILED, 30.0, note="-m pytest ended with code 1: " + 80 * "very long "),
]


def test_the_summary_is_forty_lines_at_most_and_tells_machine_times_kernels_tests_and_bars(
    tmp_path: Path,
) -> None:
    a_run(tmp_path)
    log = ["$ python -m pytest", "tests/a.py::test_1 FAILED", "$ python -m pytest"]
    log += [f"tests/a.py::test_{n} {'FAILED' if n % 7 == 0 else 'PASSED'} [ 1%]" for n in range(50)]
    (tmp_path / "pytest.txt").write_text("\n".join(log))
    lines = summary(tmp_path, OUTCOMES)
    assert len(lines) <= MOST_LINES
    assert max(map(len, lines)) <= WIDTH
    text = "\n".join(lines)
    assert "NVIDIA H200, driver 580.1, torch 2.11.0" in text
    assert "a copy: 4,300 GB/s; a kernel that does nothing: stream 1.30 µs" in text
    assert "arms cut: its 150 s were over" in text
    assert "qwen3-1.7b, batch 1, context 512, µs a step: graph-5-pdl " in text
    assert "norm_qkv_proj" in text
    assert "tests: 42 passed, 8 failed" in text
    assert "test_1\n" not in text  # it failed in an earlier attempt, and passed in the last
    assert all(f": {bar.says[:20]}" in text for bar in BARS)
    assert EMULATED not in text


def test_a_run_that_ended_at_once_still_has_a_summary(tmp_path: Path) -> None:
    assert summary(tmp_path, OUTCOMES[:1])[0].startswith("no environment.json")
    a_run(tmp_path, EMULATED_GPU)
    assert summary(tmp_path, OUTCOMES)[0] == EMULATED


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for page in (BARS_PAGE, KERNELS_PAGE, FRONT_PAGE):
        (tmp_path / "tree" / page).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / page, tmp_path / "tree" / page)
    return tmp_path / "tree"


def test_the_tables_of_the_project_say_what_its_evidence_says() -> None:
    for path, text in filled(ROOT).items():
        assert path.read_text() == text, f"{path}: run `python -m mini_engine gpu publish`"


def test_a_run_on_a_gpu_fills_the_tables_and_is_kept(project: Path, tmp_path: Path) -> None:
    a_run(tmp_path / "run")
    written = publish(tmp_path / "run", project, "h200")
    assert (project / EVIDENCE / "chain-h200.json") in written
    kernels = (project / KERNELS_PAGE).read_text()
    assert "| norm_qkv_proj | 8,400,896 | 1.95 | 2.00 (2,100 GB/s) |" in kernels
    assert "| norm_lm_head (once a step) | 311,207,008 | 72.37 | 7.00 (600 GB/s) |" in kernels
    bars = (project / BARS_PAGE).read_text()
    rows = [line for line in bars.splitlines() if line.startswith(f"| {BARS[0].says} ")]
    assert "(bench-h200.json) |" in rows[0]
    assert rows[0].split(" | ")[-1].startswith(("reached: ", "missed: "))
    front = (project / FRONT_PAGE).read_text()
    assert re.search(r"\| Qwen3-0\.6B \| 0\.42 ms \| 0\.\d\d ms, (reached|missed) \|\n", front)
    assert publish(tmp_path / "run", project, "h200")  # the same again changes nothing
    assert (project / BARS_PAGE).read_text() == bars


def test_without_evidence_the_tables_say_not_yet_measured(project: Path) -> None:
    (text,) = [text for path, text in filled(project).items() if path.name == "README.md"
               and path.parent.name == "measurements"]  # fmt: skip
    assert text.count(NOT_YET) >= len(BARS)


def test_what_the_emulator_wrote_is_never_published(project: Path, tmp_path: Path) -> None:
    a_run(tmp_path / "run", EMULATED_GPU)
    before = (project / KERNELS_PAGE).read_text()
    with pytest.raises(ValueError, match="the CPU emulator wrote it, so it is no evidence"):
        publish(tmp_path / "run", project, "h200")
    assert (project / KERNELS_PAGE).read_text() == before
    assert not list((project / EVIDENCE).glob("*.json"))
    with pytest.raises(ValueError, match="run the stages first"):
        publish(tmp_path, project, "h200")
    a_run(tmp_path / "real")
    with pytest.raises(ValueError, match="run it from the root of the repository"):
        publish(tmp_path / "real", tmp_path, "h200")


def test_a_newer_part_of_a_bar_takes_no_whole_verdicts_place_and_a_whole_one_does() -> None:
    def bench(shapes: tuple[str, ...], date: str, theirs_us: float) -> Measurement:
        rows = [made_up_row(arm, 1, shape=shape, us=us) for shape in shapes
                for arm, us in (("graph-5-pdl", 700.0), ("hf-eager", theirs_us))]  # fmt: skip
        return replace(measurement("bench", dict(made_up(rows).figures)), date=date)

    whole = bench(MODELS, "2026-11-22", 7000.0)
    found = _results({"old": whole, "new": bench(MODELS[:1], "2026-11-23", 7000.0)})
    assert found["times-transformers"][1] == "old"
    found = _results({"old": whole, "new": bench(MODELS, "2026-11-23", 7100.0)})
    assert (found["times-transformers"][1], found["times-transformers"][0].status) == (
        "new", "reached",
    )  # fmt: skip
