"""The command line: the main job, JSON for machines, and one clear line on bad input."""

from __future__ import annotations

import io
import json
import re
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mini_engine.cli import as_json, build_parser, load, main, options
from mini_engine.cli.terminal import Screen
from mini_engine.engine.generation import SHIPPED
from mini_engine.model.config import named_shape
from mini_engine.serving.request_trace import SHIPPED_TRACE
from mini_engine.sim import generate as sim
from mini_engine.step.cards import load_spec
from mini_engine.step.explain import Way
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time
from tests.cli.test_refusals import refused
from tests.sim.test_trace import check_chrome_schema

ROOT = Path(__file__).parent.parent.parent


def json_of(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command prints with --json."""
    assert main([*words, "--json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    result = json.loads(out)
    assert isinstance(result, dict)
    return result


# -- the main job --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path, str]:
    """The demo, once: what it found, its folder, and what it shows to people."""
    out = tmp_path_factory.mktemp("demo") / "out"
    words = ["demo", "--out", str(out), "--json"]
    args = build_parser(words).parse_args(words)
    found = vars(args) | load("demo").run(args, Console(stderr=True, quiet=True))
    screen = Screen(file=io.StringIO(), width=80)
    load("demo").show(Namespace(**found), screen)
    assert isinstance(screen.file, io.StringIO)
    return json.loads(json.dumps(found, default=as_json)), out, screen.file.getvalue()


def test_the_demo_writes_the_same_text_in_all_four_modes(
    demo: tuple[dict[str, Any], Path, str],
) -> None:
    result, _, screen = demo
    assert result["modes"] == ["NONE", "PIECEWISE", "FULL", "FULL_AND_PIECEWISE"]
    assert len(result["prompts"]) >= 3
    assert f"wrote the same {sum(map(len, result['tokens']))} tokens" in screen


def test_the_demo_predicts_engines_on_one_card_and_one_host(
    demo: tuple[dict[str, Any], Path, str],
) -> None:
    rows = {row["mode"]: row for row in demo[0]["predictions"]}
    assert [*rows] == ["HF eager", "NONE", "PIECEWISE", "FULL", "launch-bound"]
    assert [row["kernels"] for row in rows.values()] == [1591, 373, 373, 373, 143]
    assert [row["launches"] for row in rows.values()] == [1592, 374, 121, 9, 2]
    itls = [row["itl_us"] for row in rows.values()]
    assert itls == sorted(itls, reverse=True)
    said = {key: demo[0][key] for key in ("spec", "host", "engine")}
    assert said == {"spec": "h200", "host": "server", "engine": "vllm"}
    config, shape = named_shape("qwen3-0.6b"), StepShape.decode(1, 512)
    for mode, engine, launched, group in (
        ("HF eager", "transformers", "eager", "NONE"),
        ("NONE", "vllm", "eager", "NONE"),
        ("PIECEWISE", "vllm", "piecewise", "PIECEWISE"),
        ("FULL", "vllm", "full", "FULL"),
        ("launch-bound", "launch-bound", "full", "FULL"),
    ):
        spec, row = load_spec("h200", engine=engine), rows[mode]
        step = step_time(step_ops(config, shape, spec.ops), spec, launched)  # type: ignore[arg-type]
        assert row["itl_us"] == pytest.approx(step.itl_us)
        assert row["gpu_us"] == pytest.approx(step.gpu_busy_us)
        assert (row["low_us"], row["high_us"]) == pytest.approx(spec.interval(step.itl_us, group))
    for mode in ("PIECEWISE", "FULL"):
        saved_us = rows["NONE"]["itl_us"] - rows[mode]["itl_us"]
        replays = rows[mode]["pays_after_replays"]
        assert (replays - 1) * saved_us < rows[mode]["capture_us"] <= replays * saved_us
    assert rows["PIECEWISE"]["graphs"] == 51 * 29  # 51 rungs of 28 + 1 pieces


def test_the_demo_writes_a_picture_and_a_trace(demo: tuple[dict[str, Any], Path, str]) -> None:
    out = demo[1]
    assert sorted(path.name for path in out.iterdir()) == ["timeline.png", "trace.json"]
    data = (out / "timeline.png").read_bytes()
    assert data.startswith(b"\x89PNG")
    assert len(data) > 10_000
    check_chrome_schema(json.loads((out / "trace.json").read_text()))


def test_the_demo_draws_its_steps_on_two_lanes(demo: tuple[dict[str, Any], Path, str]) -> None:
    rows = {row["mode"]: row for row in demo[0]["predictions"]}
    drawn = re.findall(r"CPU (█+) +([\d.]+) ms\n +GPU ([█·]+) busy (\d+)%", demo[2])
    for (cpu, ms, gpu, busy), mode in zip(drawn, ("NONE", "FULL"), strict=True):
        row, longest_us = rows[mode], rows["NONE"]["itl_us"]
        assert float(ms) == pytest.approx(row["itl_us"] / 1e3, abs=0.051)
        assert len(gpu) == pytest.approx(50 * row["itl_us"] / longest_us, abs=0.51)
        assert len(cpu) == pytest.approx(50 * row["cpu_us"] / longest_us, abs=1)
        assert gpu.count("█") == pytest.approx(len(gpu) * row["gpu_utilisation"], abs=1)
        assert int(busy) == round(100 * row["gpu_utilisation"])


WORD = re.compile(r"\S*[^\W\d_]{2}\S*")


def found_by(*words: str) -> Namespace:
    """What a command found, with its options, for `shown`."""
    args = build_parser(words).parse_args(words, Namespace(typed=[*words]))
    return Namespace(**(vars(args) | load(words[0]).run(args, Screen(quiet=True))))


def shown(found: Namespace, columns: int, terminal: bool = False) -> str:
    """What people see of it, without its colours."""
    out = io.StringIO()
    load(found.command).show(found, Screen(file=out, width=columns, force_terminal=terminal))
    return re.sub(r"\x1b\[[\d;]*m", "", out.getvalue())


def check_terminals(found: Namespace) -> None:
    """At 80 and 120 columns no line is wider, and each word is one that a file gets."""
    whole = set(WORD.findall(shown(found, 400)))
    for columns in (80, 120):
        told = shown(found, columns, terminal=True)
        assert max(map(len, told.splitlines())) <= columns
        there = {word for word in WORD.findall(told) if "…" not in word}  # the name of a point
        assert there <= whole
        assert len(there) > 0.8 * len(whole)


@pytest.mark.parametrize("line", ["crossover --max-batch 2", "trace", "capacity", "explain"])
def test_no_line_is_wider_than_a_terminal_and_no_word_is_broken(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = found_by(*line.split())
    check_terminals(found)
    steps = {"crossover": 2, "trace": 3}.get(found.command, 0)
    for columns in (80, 120):
        told = shown(found, columns, terminal=True)
        assert len(re.findall(r" CPU █", told)) == len(re.findall(r" GPU [█·]", told)) == steps


def test_the_demo_fits_a_terminal_of_80_columns_and_says_what_is_next(
    demo: tuple[dict[str, Any], Path, str],
) -> None:
    screen = demo[2]
    assert "…" not in screen
    folder = str(demo[1].parent) + "/"  # `--out` is "out" for people
    assert max(map(len, screen.replace(folder, "").splitlines())) <= 80
    assert "crossover" in screen[screen.index("Next") :]


def test_a_mode_that_writes_other_tokens_fails_the_demo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def tampered(*args: Any, **kwargs: Any) -> sim.Generation:
        done = sim.generate(*args, **kwargs)
        if done.mode != "FULL":
            return done
        first = done.completions[0]
        changed = replace(first, tokens=(*first.tokens[:-1], 7))
        return replace(done, completions=(changed, *done.completions[1:]))

    monkeypatch.setattr("mini_engine.cli.demo.generate", tampered)
    assert main(["demo", "--out", str(tmp_path), "--prompt", "Return the"]) == 1
    assert "NONE and FULL disagree on the prompt 'Return the'" in capsys.readouterr().err


# -- prompts -------------------------------------------------------------------------------------


def test_one_prompt_streams_and_several_are_printed_apart(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["generate", "--max-new-tokens", "4", "--prompt", "Return the"]
    text = json_of(capsys, *words)["prompts"][0]["text"]
    assert main(words) == 0
    assert capsys.readouterr().out.startswith("Return the" + text)


SAMPLED = ["--temperature", "0.8", "--top-p", "0.95", "--top-k", "40", "--seed", "1"]


@pytest.mark.parametrize("drawn", [[], SAMPLED], ids=["greedy", "sampled"])
def test_both_backends_write_the_same_text(
    drawn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("torch")
    words = ["generate", "--max-new-tokens", "12", "--prompt", "Create a", "--prompt", "Return"]
    words += drawn
    sim, torch = (json_of(capsys, *words, "--backend", backend) for backend in ("sim", "cuda"))
    assert [p["tokens"] for p in torch["prompts"]] == [p["tokens"] for p in sim["prompts"]]


def test_each_prompt_is_drawn_with_a_seed_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["generate", "--max-new-tokens", "12", "--temperature", "0.8", "--prompt", "Return the"]
    first, second = json_of(capsys, *words, "--prompt", "Return the", "--seed", "4")["prompts"]
    assert first["tokens"] != second["tokens"]
    (alone,) = json_of(capsys, *words, "--seed", "5")["prompts"]
    assert second == alone


# -- the other commands --------------------------------------------------------------------------


def test_trace_writes_a_timeline_and_sums_it_up(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "t.json"
    written = json_of(capsys, "trace", "--mode", "NONE", "--mode", "FULL", "-o", str(out))
    check_chrome_schema(json.loads(out.read_text()))
    assert list(written["timelines"]) == ["NONE", "FULL"]
    assert written["timelines"]["NONE"]["utilisation"] < written["timelines"]["FULL"]["utilisation"]


def test_a_recorded_step_is_drawn_above_the_prediction_of_the_same_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "r.json"
    found = json_of(capsys, "trace", "--recorded", "sglang-qwen3-8b-graph", "-o", str(out))
    assert list(found["timelines"]) == ["recorded", "predicted"]
    assert (found["graph_launches"], found["layers"]) == (1, 36)
    told = {name: found[name] for name in ("shape", "batch", "context", "spec", "engine")}
    assert [*told.values()] == ["qwen3-8b", 32, 1025, "mi300x", "sglang"]
    assert {e["args"]["name"] for e in json.loads(out.read_text())["traceEvents"] if e["ph"] == "M"}
    assert (tmp_path / "r.png").stat().st_size > 10_000
    recorded, predicted = (
        of["attention"]["us"] for of in (found["kinds"], found["predicted"]["kinds"])
    )
    assert recorded / found["busy_us"] == pytest.approx(0.22, abs=0.01)
    assert predicted / found["predicted"]["busy_us"] == pytest.approx(0.22, abs=0.03)


def test_a_step_of_which_only_a_table_was_published_is_told_beside_the_same_step(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["trace", "--recorded", "sglang-qwen3-0.6b-h100-eager", "--batch", "16"]
    found = json_of(capsys, *words, "-o", str(tmp_path / "r.json"))
    assert (found["shape"], found["context"], found["engine"]) == ("qwen3-0.6b", 336, "sglang")
    assert list(found["timelines"]) == ["predicted"]
    whole = found["timelines"]["predicted"]["length_us"]
    assert found["predicted"]["gpu_us"] == pytest.approx(whole)
    assert Path(found["picture"]).stat().st_size > 10_000


def test_of_a_recording_without_calls_the_shares_of_the_cpu_are_unknown(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["trace", "--recorded", "vllm-gemma-4-runner-1", "-o", str(tmp_path / "r.json")]
    found = json_of(capsys, *words)
    assert (found["launches"], found["idle_in_launch_us"], found["predicted"]) == (None, None, None)
    assert (tmp_path / "r.png").stat().st_size > 10_000
    assert main(words) == 0
    assert "76% at work" in capsys.readouterr().out


def test_a_trace_is_of_the_engine_and_the_host_that_are_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["trace", "--mode", "HF eager", "--mode", "NONE", "-o", str(tmp_path / "t.json")]
    usual = json_of(capsys, *words)
    assert (usual["spec"], usual["host"], usual["engine"]) == ("h200", "server", "vllm")
    quick = json_of(capsys, *words, "--host", "desktop-2025", "--engine", "sglang")
    assert (quick["host"], quick["engine"]) == ("desktop-2025", "sglang")
    # the ops of transformers are issued by transformers, unless an engine is asked for
    hf = load_spec("h200", engine="transformers")
    assert usual["timelines"]["HF eager"]["cpu_us"] > 1591 * hf.cpu_op_us
    assert usual["timelines"]["HF eager"]["cpu_us"] < 1591 * load_spec("h200").cpu_op_us
    sglang = load_spec("h200", "desktop-2025", "sglang")
    assert quick["timelines"]["NONE"]["cpu_us"] > 310 * sglang.cpu_op_us
    assert main([*words, "--host", "desktop-2025", "--engine", "sglang"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "on one h200, host desktop-2025, engine sglang" in out


def test_serve_reports_on_the_shipped_trace(capsys: pytest.CaptureFixture[str]) -> None:
    result = json_of(capsys, "serve")
    assert result["requests"] == len(SHIPPED_TRACE.read_text().splitlines())
    assert result["ttft_p50_us"] <= result["ttft_p99_us"]
    assert result["itl_p50_us"] <= result["itl_p99_us"]
    assert result["steps"] == sum(result["steps_by_mode"].values())
    assert result["graphs"]["memory_bytes"] > 0
    assert result["optimal_ladder"]["saved_rows"] >= 0
    assert (result["spec"], result["host"], result["engine"]) == ("h200", "server", "vllm")
    sure = result["itl_p50_interval"]  # most steps ran in full graphs, of some 2 requests
    ends = load_spec("h200").interval(result["itl_p50_us"], "FULL", 2)
    assert (sure["low_us"], sure["high_us"]) == pytest.approx(ends)
    assert main(["serve"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "simulated steps a second" in out
    assert "on one h200, host server, engine vllm, FULL_AND_PIECEWISE" in out
    assert options.ms(Way(**sure)) in out


def test_serve_tells_what_a_prefix_cache_finds(capsys: pytest.CaptureFixture[str]) -> None:
    # which turns the prefix cache on
    words = ["--kv-blocks", "600", "--shared-prefix", "512", "--share", "0.6"]
    result = json_of(capsys, "serve", *words)
    assert result["kv_blocks"] == 600
    assert 0.1 < result["prefix_hit_rate"] < 0.6
    assert result["recomputed_tokens"] > result["recompute_tokens_saved"] >= 0
    assert main(["serve", *words]) == 0
    out = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert f"prefix cache: hit rate {result['prefix_hit_rate']:.1%}" in out


# -- bad input -----------------------------------------------------------------------------------


def test_a_broken_checkpoint_is_told_apart_from_a_missing_one(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "broken"
    shutil.copytree(SHIPPED, folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    line = refused(capsys, "generate", "--model", str(folder))
    assert "model.safetensors" in line
    (folder / "config.json").unlink()
    assert "config.json: missing" in refused(capsys, "generate", "--model", str(folder))
