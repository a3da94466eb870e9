"""crossover, ladder and capacity: their tables hold the rooms' own numbers, their help is true."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mini_engine import cli
from mini_engine.cli import ladder
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.dispatch.dispatcher import GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, optimal_ladder
from mini_engine.model.config import named_shape
from mini_engine.serving.ladder_cost import LadderCosts
from mini_engine.step.capacity import capacity as add_up
from mini_engine.step.cards import FOLDERS, load_spec
from mini_engine.step.curves import crossover_batch, itl_curve
from mini_engine.step.kernels import StepShape, step_ops
from mini_engine.step.run import step_time


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # so that no line of output is broken


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    """What a command prints with --json."""
    assert cli.main([*words, "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == ""
    found = json.loads(printed.out)
    assert isinstance(found, dict)
    return found


def shown(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What a command prints for people, in single spaces."""
    assert cli.main(list(words)) == 0
    return " ".join(capsys.readouterr().out.split())


# ---------------------------------------------------------------- crossover


def test_crossover_rows_are_points_of_the_curve(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "crossover", "--spec", "a100", "--context", "300", "--max-batch", "70",
        "--engine", "launch-bound",
    )  # fmt: skip
    spec = load_spec("a100", engine="launch-bound")
    sizes = default_capture_sizes(256, 8192)
    curve = itl_curve(
        named_shape("qwen3-0.6b"), spec, CaptureLadder(sizes),
        style="fused5", context=300, max_batch=70,
    )  # fmt: skip
    batches = [row["batch"] for row in found["rows"]]
    assert {1, 2, 4, 8, 16, 32, 64, 70, min(curve.crossover, 70)} == set(batches)
    for row in found["rows"]:
        point = curve.point(row["batch"])
        assert row["rung"] == point.rung
        assert row["eager_us"] == pytest.approx(point.eager.itl_us)
        assert row["piecewise_us"] == pytest.approx(point.piecewise.itl_us)
        assert row["full_us"] == pytest.approx(point.full.itl_us)
        assert row["speedup"] == pytest.approx(row["eager_us"] / row["full_us"])
        assert row["floor_us"] == pytest.approx(point.floor_us)
        assert row["eager_utilisation"] == pytest.approx(point.eager.utilisation)
        assert row["full_utilisation"] == pytest.approx(point.full.utilisation)
    assert found["crossover_batch"] == curve.crossover
    assert found["capture_sizes"] == sizes
    assert found["style"] == "fused5"
    assert (found["spec"], found["host"], found["engine"]) == ("a100", "server", "launch-bound")


def test_crossover_prints_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("crossover", "--max-batch", "16")
    told = shown(capsys, *words)
    row = next(row for row in answer(capsys, *words)["rows"] if row["batch"] == 4)
    itls = (row[f"{mode}_us"] / 1e3 for mode in ("eager", "piecewise", "full"))
    cells = "│ 4 │ 4 │ {:.3f} │ {:.3f} │ {:.3f} │".format(*itls)
    assert cells in told
    assert "predicted" in told
    assert "on one h200, host server, engine vllm, op list fused9" in told
    assert "Eager is launch-bound at every batch here" in told
    near = shown(capsys, "crossover", "--spec", "l4", "--max-batch", "16")
    assert "Eager is launch-bound below a batch of 10" in near
    assert "The crossover is at batch 10 (1 to" in near


def test_crossover_says_how_sure_its_answers_are(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "crossover", "--max-batch", "4", "--host", "desktop-2025")
    spec = load_spec("h200", "desktop-2025")
    low, high = found["crossover_interval"]
    assert 1 < low < found["crossover_batch"] < high
    for us, batch in zip(spec.interval(spec.cpu_op_us, "NONE"), (low, high), strict=True):
        quick_or_slow = replace(spec, cpu_op_us=us)
        assert crossover_batch(named_shape("qwen3-0.6b"), quick_or_slow, "fused9", 1024) == batch
    for mode, key in (("NONE", "eager"), ("PIECEWISE", "piecewise"), ("FULL", "full")):
        one = found["batch_1"][mode]
        assert one["itl_us"] == pytest.approx(found["rows"][0][f"{key}_us"])
        ends = spec.interval(one["itl_us"], mode)
        assert (one["low_us"], one["high_us"]) == pytest.approx(ends)
    told = shown(capsys, "crossover", "--max-batch", "4", "--host", "desktop-2025")
    full = (found["batch_1"]["FULL"][key] / 1e3 for key in ("itl_us", "low_us", "high_us"))
    assert "FULL {:.2f} ms ({:.2f} to {:.2f})".format(*full) in told
    assert "80% of what others measured" in told


def test_a_host_of_ones_own_is_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    sheet = json.loads((FOLDERS["host"] / "server.json").read_text()) | {"name": "mine"}
    sheet["op_us"]["value"] /= 4
    path = tmp_path / "mine.json"
    path.write_text(json.dumps(sheet))
    words = ("crossover", "--max-batch", "2")
    mine, usual = answer(capsys, *words, "--host", str(path)), answer(capsys, *words)
    assert mine["host"] == "mine"
    assert mine["crossover_batch"] < usual["crossover_batch"]


# ---------------------------------------------------------------- ladder


def test_ladder_counts_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "ladder", "--shape", "qwen3-8b", "--spec", "h100")
    sizes = default_capture_sizes(256, 8192)
    assert found["capture_sizes"] == sizes
    cost = LadderCosts(named_shape("qwen3-8b"), load_spec("h100"), found["mode"], 256).of(sizes)
    assert found["piecewise_graphs"] == 51 * 37
    assert found["full_graphs"] == 35
    assert found["graphs"] == cost.graphs
    assert found["capture_us"] == pytest.approx(cost.capture_us)
    assert found["memory_bytes"] == cost.memory_bytes
    told = shown(capsys, "ladder", "--shape", "qwen3-8b", "--spec", "h100")
    assert "1, 2, 4, 8 … 256 (every 8), 272 … 512 (every 16)" in told
    assert "51 sizes × 37 pieces = 1,887 graphs" in told
    assert "FULL 35 graphs" in told
    assert "36 layers, on one h100, host server, engine vllm" in told


def test_ladder_explains_why_33_runs_at_40(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "ladder", "--batch", "33")["batch"]
    assert found["explanation"] == CaptureLadder(default_capture_sizes(256, 8192)).explain(33)
    assert (found["decode"], found["mixed"]) == ("FULL, 40 rows", "PIECEWISE, 40 rows")
    assert "A batch of 33 runs at 40" in shown(capsys, "ladder", "--batch", "33")


@pytest.mark.parametrize(
    ("words", "decode", "says"),
    [
        (["--spec-tokens", "2", "--max-num-seqs", "6", "--batch", "5"], "FULL, 18", "whole req"),
        (["--capture-sizes", "4,8", "--max-num-seqs", "6", "--batch", "5"], "PIECEWISE, 8", "No f"),
        (["--capture-sizes", "4,8", "--batch", "9"], "NONE, 9", "above the top rung 8"),
        (["--mode", "NONE", "--batch", "9"], "NONE, 9", "Without graphs"),
        (["--mode", "FULL_DECODE_ONLY", "--batch", "9"], "FULL, 16", "7 of the 16 rows"),
    ],
)
def test_ladder_explains_what_the_dispatcher_does(
    words: list[str], decode: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found = answer(capsys, "ladder", *words)["batch"]
    assert found["decode"] == f"{decode} rows"
    assert says in found["explanation"]


def test_the_explanation_is_for_every_batch_the_dispatchers_answer() -> None:
    dispatcher = GraphDispatcher("FULL_AND_PIECEWISE", [1, 2, 4, 8, 16], 6)
    for batch in range(1, 7):
        chosen = dispatcher.dispatch(batch, batch, 1)
        told = ladder.explain_batch(dispatcher, batch)
        assert told["decode"] == f"{chosen.mode.name}, {chosen.num_tokens} rows"
        assert ("No full graph" in told["explanation"]) is (chosen.mode.name != "FULL")


def test_ladder_compares_with_the_best_ladders_of_a_histogram(
    capsys: pytest.CaptureFixture[str],
) -> None:
    histogram = {33: 100, 5: 20, 17: 7, 300: 1, 600: 2}
    Path("h.json").write_text(json.dumps({"steps_by_rows": histogram}))
    words = ("ladder", "--histogram", "h.json", "--capture-sizes", "8,32,512")
    found = answer(capsys, *words)["histogram"]
    own = CaptureLadder([8, 32, 512])
    waste = own.waste(histogram)
    assert found["steps"] == 130
    assert found["this_ladder"]["padded_rows"] == waste.padded_rows
    assert found["this_ladder"]["wasted_fraction"] == pytest.approx(waste.wasted_fraction)
    assert found["this_ladder"]["eager_steps"] == waste.eager_steps == 2
    assert [point["rungs"] for point in found["curve"]] == [1, 2, 3]
    for point in found["curve"]:
        best = optimal_ladder(histogram, point["rungs"], top=own.top)
        assert point["capture_sizes"] == list(best)
        assert point["padded_rows"] == best.waste(histogram).padded_rows
    told = shown(capsys, *words)
    assert "130 steps" in told
    assert f"this 3 │ {waste.wasted_fraction:.1%} │ {waste.padded_rows:,} │" in told


def test_without_graphs_there_is_no_picture(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "ladder", "--mode", "NONE")
    assert (found["capture_sizes"], found["graphs"], found["capture_us"]) == ([], 0, 0)
    assert "picture" not in found
    assert "no graphs: every step is eager" in shown(capsys, "ladder", "--mode", "NONE")
    assert not list(Path().iterdir())


@pytest.mark.parametrize(
    ("sizes", "told"),
    [
        ([1, 2, 4], "1, 2, 4"),
        ([1, 2, 3, 4], "1 … 4"),
        ([8, 16, 24, 32, 33], "8 … 32 (every 8), 33"),
        ([5], "5"),
        ([], ""),
    ],
)
def test_sizes_are_told_in_runs(sizes: list[int], told: str) -> None:
    assert ladder.in_runs(sizes) == told


# ---------------------------------------------------------------- capacity


def test_capacity_rows_are_those_of_the_report(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(
        capsys, "capacity", "--gpu", "rtx4070", "--model", "qwen3-1.7b", "--context", "10000",
        "--quant", "int4", "--kv-dtype", "fp8", "--batch", "3", "--max-num-seqs", "32",
    )  # fmt: skip
    sizes = [size for size in default_capture_sizes(32, 8192) if size <= 32]
    report = add_up(
        named_shape("qwen3-1.7b"), load_spec("rtx4070"), context=10_000, batch=3,
        quant="int4", kv_dtype="fp8", capture_sizes=sizes,
    )  # fmt: skip
    assert [(row["item"], row["bytes"], row["note"]) for row in found["rows"]] == report.rows()
    for key in ("max_context", "max_batch", "left_bytes", "fits"):
        assert found[key] == getattr(report, key)
    assert (found["floor_us"], found["copy_floor_us"]) == pytest.approx(
        (report.floor_ms * 1e3, report.copy_floor_ms * 1e3)
    )
    assert found["full_graphs"] == len(sizes) == 7


def test_the_items_of_a_card_add_up_to_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    found = answer(capsys, "capacity", "--gpu", "l4", "--batch", "5")
    card, *items = [row["bytes"] for row in found["rows"]]
    assert sum(items) == card


def test_capacity_prints_the_table_and_says_when_it_does_not_fit(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = shown(capsys, "capacity", "--gpu", "rtx4070", "--model", "qwen3-8b")
    assert "It does not fit." in told
    assert "largest batch at 4,096 tokens: 0" in told
    fits = shown(capsys, "capacity", "--vram-gb", "12", "--model", "qwen3-0.6b")
    assert "│ card │ 12.000 │" in fits
    assert "floor of ITL: unknown" in fits
    assert "the model was made for 40,960" in fits


def test_capacity_predicts_a_step_beside_its_floor(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("capacity", "--spec", "h100", "--host", "desktop-2025", "--engine", "sglang")
    found = answer(capsys, *words, "--batch", "3")
    spec = load_spec("h100", "desktop-2025", "sglang")
    ops = step_ops(named_shape("qwen3-0.6b"), StepShape.decode(3, 4096), spec.ops)
    itl = found["predicted"]
    assert itl["itl_us"] == pytest.approx(step_time(ops, spec, "full", 3).itl_us)
    assert found["copy_floor_us"] < itl["low_us"] < itl["itl_us"] < itl["high_us"]
    told = shown(capsys, *words, "--batch", "3")
    assert "one graph of sglang on the host desktop-2025, predicted" in told
    four_bits = answer(capsys, *words, "--batch", "3", "--quant", "int4")
    assert four_bits["copy_floor_us"] < four_bits["predicted"]["itl_us"] < itl["itl_us"]


def test_does_the_file_fit_my_card_at_this_context(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("capacity", "--spec", "rtx4060", "--shape", "qwen3-8b", "--context", "8192")
    by_name = answer(capsys, *words, "--quant", "q4_k_m")
    assert by_name["fits"]
    by_size = answer(capsys, *words, "--file-gb", "5.5", "--kv-dtype", "fp8")
    sizes = {row["item"]: row["bytes"] for row in by_size["rows"]}
    assert sizes["weights"] == 5.5e9
    assert by_size["kv_bytes_per_token"] * 2 == by_name["kv_bytes_per_token"]
    assert "weights a file of 5.5 GB" in shown(capsys, *words, "--file-gb", "5.5")
    assert not answer(capsys, *words, "--quant", "q8_0")["fits"]


def test_crossover_and_serve_take_weights_and_cache_in_few_bits(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    few = ("--quant", "int4", "--kv-dtype", "fp8")
    words = ("crossover", "--max-batch", "1", "--out", str(tmp_path / "x.png"))
    plain, small = answer(capsys, *words), answer(capsys, *words, *few)
    assert (plain["quant"], small["quant"], small["kv_dtype"]) == ("bf16", "int4", "fp8")
    assert small["rows"][0]["floor_us"] < plain["rows"][0]["floor_us"]
    assert small["rows"][0]["full_us"] < plain["rows"][0]["full_us"]
    assert small["crossover_batch"] > plain["crossover_batch"]  # launch-bound up to more requests
    plain, small = answer(capsys, "serve"), answer(capsys, "serve", *few)
    assert small["kv_blocks"] > 2 * plain["kv_blocks"]
    assert small["itl_p50_us"] < plain["itl_p50_us"]


def test_capacity_says_what_a_trace_would_cost_without_pages(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "three.jsonl"
    lengths = [(10, 3), (4, 2), (90, 20)]
    trace.write_text(
        "".join(
            f'{{"arrival_s": 0, "prompt_tokens": {p}, "output_tokens": {n}}}\n' for p, n in lengths
        )
    )
    words = ("capacity", "--batch", "2", "--context", "100", "--trace", str(trace))
    rows, per_token = answer(capsys, *words)["without_pages"], 114_688
    assert (rows["requests"], rows["too_long"], rows["mean_context"]) == (2, 1, 10)
    assert rows["needed_bytes"] == (11 + 12 + 5) * per_token
    assert rows["beyond_bytes"] == (300 - 28) * per_token
    assert rows["ended_bytes"] == 100 * per_token
    told = " ".join(shown(capsys, *words).split())
    assert "2 requests of three.jsonl in batches of 2" in told
    assert "7% of them for a text, 68% behind one, 25% in rows that have ended" in told
    assert answer(capsys, "capacity")["without_pages"] is None
    assert cli.main(["capacity", "--context", "5", "--trace", str(trace)]) == 2
    assert "none of 3 requests" in capsys.readouterr().err
