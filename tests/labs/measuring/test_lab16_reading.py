"""Lab 16 reads a server of one's own, and quotes what others have published of theirs."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")

from labs.lab16_vllm import measure as vllm_measure
from labs.lab16_vllm.published import FILE, reconciled, told
from labs.lab16_vllm.written_logs import bar, start_up
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.step.cards import load_spec
from tests.support.documents import ROOT


def a_log(folder: Path, limit: int = 64, mode: str = "FULL_AND_PIECEWISE") -> Path:
    sizes = default_capture_sizes(limit, 2048, mode=mode)
    full = sum(size <= limit for size in sizes)
    bars = bar("PIECEWISE", len(sizes)) + bar("FULL", full) if sizes else ""
    path = folder / "serve.log"
    path.write_text(start_up("VLLM_COMPILE", mode, list(sizes), bars))
    return path


def a_result(folder: Path, **others: object) -> Path:
    gaps = [[0.0014] * 4, [0.0016] * 4]
    result = {
        "itls": gaps, "ttfts": [0.03, 0.03], "output_lens": [5, 5], "input_lens": [512, 512],
        "latencies": [0.03 + sum(one) for one in gaps], "max_concurrency": 1,
    } | others  # fmt: skip
    path = folder / "result.json"
    path.write_text(json.dumps(result))
    return path


def test_the_log_of_ones_own_server_is_held_against_the_policy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vllm_measure.main(["--log", str(a_log(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert "vLLM 0.33.0, compile VLLM_COMPILE, graphs FULL_AND_PIECEWISE" in said
    assert "19 sizes, up to 128" in said
    assert "{'PIECEWISE': 19, 'FULL': 11}" in said
    assert said.count(": yes") == 2


@pytest.mark.parametrize(("mode", "launched"), [("FULL_AND_PIECEWISE", "full"), ("NONE", "eager")])
def test_a_result_stands_beside_the_model_of_the_mode_that_the_log_tells(
    mode: str, launched: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--log", str(a_log(tmp_path, mode=mode)), "--result", str(a_result(tmp_path))]
    assert vllm_measure.main(words) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "8 1.500 1.500 1.600 1.500 1.00" in said
    assert f"batch 1, context 514, {launched}:" in said


def test_a_result_alone_is_read_and_one_without_its_batch_is_not_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert vllm_measure.main(["--result", str(a_result(tmp_path))]) == 0
    assert "context 514, full:" in capsys.readouterr().out
    assert vllm_measure.main(["--result", str(a_result(tmp_path, max_concurrency=None))]) == 0
    said = capsys.readouterr().out
    assert "No max_concurrency" in said
    assert "Our model" not in said


# ---------------------------------------------------------------- published


def test_every_published_figure_has_its_source() -> None:
    every = json.loads(FILE.read_text())
    for name, figures in every.items():
        assert name == "_meta" or figures["source"].startswith("https://github.com/")
    run = every["requests"]
    for variant, ms in run["mean_latency_ms"].items():  # the two columns say the same
        assert run["tokens_per_s"][variant] == pytest.approx(1e3 * run["new_tokens"] / ms, rel=0.01)


def test_the_published_factor_lies_where_the_model_of_the_step_allows_it() -> None:
    found = reconciled(load_spec("h200"))
    assert found.published_factor == pytest.approx(3.7, abs=0.05)
    low, high = (found.request_factor(step) for step in found.eager_range)
    assert low < found.published_factor < high
    assert found.published_factor < found.step_factor
    assert found.steps * found.graph_step + found.outside == pytest.approx(found.published_graphs)


def test_the_page_of_the_lab_quotes_the_reckoning_as_it_is_printed() -> None:
    page = " ".join((ROOT / "labs/lab16_vllm/README.md").read_text().split())
    lines = told(load_spec("h200"))
    for line in lines[lines.index("") + 1 :]:
        for number in re.findall(r"x?\d+\.\d+", line):
            assert number.replace("x", "×") in page, f"{number} of: {line}"
