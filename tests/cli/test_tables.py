"""crossover, ladder and capacity: what is shown is what the rooms say, and nothing that the card or
the model cannot do is predicted or dropped in silence."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mini_engine.cli import main, options
from mini_engine.dispatch.default_ladder import default_capture_sizes
from mini_engine.model.config import named_shape
from mini_engine.step.cards import FOLDERS, load_spec
from mini_engine.step.curves import crossover_batch
from mini_engine.step.explain import Way
from tests.cli.test_commands import json_of

ROOT = Path(__file__).parent.parent.parent
MODEL = named_shape("qwen3-0.6b")


@pytest.fixture(autouse=True)
def _in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")  # so that no line of output is broken


def answer(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    """What a command prints with --json."""
    return json_of(capsys, *shlex.split(words))


def shown(capsys: pytest.CaptureFixture[str], words: str) -> str:
    """What a command prints for people, in single spaces."""
    assert main(shlex.split(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def host_file(name: str, times: float) -> str:
    """The usual server, so many times as slow, as a file."""
    sheet = json.loads((FOLDERS["host"] / "server.json").read_text()) | {"name": name}
    sheet["op_us"]["value"] *= times
    Path(f"{name}.json").write_text(json.dumps(sheet))
    return f"{name}.json"


# ---------------------------------------------------------------- crossover


def test_crossover_prints_its_points(capsys: pytest.CaptureFixture[str]) -> None:
    words = "crossover --spec l4 --context 300 --max-batch 70 --engine launch-bound"
    found, told = answer(capsys, words), shown(capsys, words)
    crossover = found["crossover_batch"]
    batches = [point["batch"] for point in found["points"]]
    assert {1, 2, 4, 8, 16, 32, 64, 70, min(crossover, 70)} == set(batches)
    assert found["capture_sizes"] == default_capture_sizes(256, 2048)
    for point in found["points"]:
        itls = [
            options.two_digits(point[mode]["itl_us"] / 1e3)
            for mode in ("eager", "piecewise", "full")
        ]
        cells = f" {point['batch']} {point['rung']} {' '.join(itls)} "
        assert cells in told
    assert "on one l4, host server, engine launch-bound, op list fused5" in told
    assert f"{found['finding']}. The crossover is at batch {crossover} (" in told


def test_crossover_says_how_sure_its_answers_are(capsys: pytest.CaptureFixture[str]) -> None:
    words = "crossover --max-batch 4 --host desktop-2025"
    found, told = answer(capsys, words), shown(capsys, words)
    spec = load_spec("h200", "desktop-2025")
    low, high = found["crossover_interval"]
    assert 1 < low < found["crossover_batch"] < high
    for us, batch in zip(spec.interval(spec.cpu_op_us, "NONE"), (low, high), strict=True):
        assert crossover_batch(MODEL, replace(spec, cpu_op_us=us), 1024) == batch
    for mode, key in (("NONE", "eager"), ("PIECEWISE", "piecewise"), ("FULL", "full")):
        one = found["batch_1"][mode]
        assert one["itl_us"] == found["points"][0][key]["itl_us"]
        assert (one["low_us"], one["high_us"]) == spec.interval(one["itl_us"], mode)
        assert f"{mode} {options.ms(Way(**one))}" in told


def test_a_host_of_ones_own_is_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    mine = answer(capsys, f"crossover --max-batch 2 --host {host_file('mine', 0.25)}")
    assert mine["host"] == "mine"
    assert mine["crossover_batch"] < answer(capsys, "crossover --max-batch 2")["crossover_batch"]


README = re.findall(
    r"^\.venv/bin/python -m mini_engine (crossover.*)$", (ROOT / "README.md").read_text(), re.M
)


@pytest.mark.parametrize("words", [*README, "crossover --shape qwen3-8b --spec l4 --context 2048"])
def test_crossover_ends_where_capacity_says_that_no_more_fits(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, told = answer(capsys, words), shown(capsys, words)
    given = f"--shape {found['shape']} --spec {found['spec']} --context {found['context']}"
    room = answer(capsys, f"capacity {given}")["report"]["max_batch"]
    assert found["room"] == found["points"][-1]["batch"] == room
    assert f"Batches above {room:,} are left out" in told


def test_a_crossover_beyond_the_card_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    words = f"crossover --spec rtx4090 --host {host_file('slow', 100)}"
    assert "so many requests do not fit" in shown(capsys, words)


def test_crossover_and_serve_take_weights_and_cache_in_few_bits(
    capsys: pytest.CaptureFixture[str],
) -> None:
    few, words = "--quant int4 --kv-dtype fp8", "crossover --max-batch 1"
    plain, small = answer(capsys, words), answer(capsys, f"{words} {few}")
    assert (plain["quant"], small["quant"], small["kv_dtype"]) == ("bf16", "int4", "fp8")
    assert small["points"][0]["floor_us"] < plain["points"][0]["floor_us"]
    assert small["points"][0]["full"]["itl_us"] < plain["points"][0]["full"]["itl_us"]
    assert small["crossover_batch"] > plain["crossover_batch"]  # launch-bound up to more requests
    plain, small = answer(capsys, "serve"), answer(capsys, f"serve {few}")
    assert small["kv_blocks"] > 2 * plain["kv_blocks"]
    assert small["itl_p50_us"] < plain["itl_p50_us"]


# ---------------------------------------------------------------- ladder


def test_ladder_counts_graphs(capsys: pytest.CaptureFixture[str]) -> None:
    words = "ladder --shape qwen3-8b --spec h100"
    found, told = answer(capsys, words), shown(capsys, words)
    assert found["capture_sizes"] == default_capture_sizes(1024, 8192)
    assert (found["costs"]["piecewise_graphs"], found["costs"]["full_graphs"]) == (51 * 37, 51)
    assert "1, 2, 4, 8 … 256 (every 8), 272 … 512 (every 16)" in told
    assert "51 sizes × 37 pieces = 1,887 graphs" in told
    assert "FULL 51 graphs" in told
    assert "36 layers, on one h100, host server, engine vllm" in told


def test_graphs_that_do_not_fit_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "ladder --shape qwen3-8b --spec rtx4060")
    assert "With the weights they do not fit the rtx4060" in told


@pytest.mark.parametrize(
    ("words", "decode", "says"),
    [
        ("--batch 33", "FULL, 40", "A batch of 33 runs at 40"),
        ("--spec-tokens 2 --max-num-seqs 6 --batch 5", "FULL, 18", "5 requests of 3 tokens"),
        ("--capture-sizes 4,8 --max-num-seqs 6 --batch 5", "PIECEWISE, 8", "No full graph"),
        ("--capture-sizes 4,8 --batch 9", "NONE, 9", "above the top rung 8"),
        ("--mode NONE --batch 9", "NONE, 9", "Without graphs"),
        ("--mode FULL_DECODE_ONLY --batch 9", "FULL, 16", "7 of the 16 rows"),
    ],
)
def test_ladder_explains_what_the_dispatcher_does(
    words: str, decode: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    told = shown(capsys, f"ladder {words}")
    assert f"when all decode: {decode} rows" in told
    assert says in told


def test_a_capture_size_that_no_step_reaches_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    words = "generate --prompt a --max-new-tokens 1 --capture-sizes 8,9000,16"
    assert main(words.split()) == 0
    assert "9000" in capsys.readouterr().err


def test_without_graphs_a_ladder_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no graphs: every step is eager" in shown(capsys, "ladder --mode NONE")


def test_with_json_a_picture_is_written_only_where_one_is_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer(capsys, "crossover --max-batch 4")
    assert not list(Path().iterdir())
    answer(capsys, f"crossover --max-batch 4 -o {tmp_path / 'asked.png'}")
    assert (tmp_path / "asked.png").exists()


# ---------------------------------------------------------------- capacity


def test_the_items_of_a_card_add_up_to_the_card(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(shlex.split("capacity --gpu l4 --batch 5")) == 0
    rows = capsys.readouterr().out.partition(" ──")[2].splitlines()[1:9]
    card, *items = [float(re.findall(r"(?<= )-?\d+\.\d{3}(?= )", row)[0]) for row in rows]
    assert len(items) == 7
    assert sum(items) == pytest.approx(card, abs=0.01)


def test_capacity_says_when_it_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    told = shown(capsys, "capacity --gpu rtx4070 --model qwen3-8b")
    assert "missing: it does not fit" in told
    assert "largest batch at 4,096 tokens: 0" in told
    assert not answer(capsys, "capacity --batch 1000000000")["report"]["fits"]


def test_a_context_beyond_the_models_own_is_called_that(capsys: pytest.CaptureFixture[str]) -> None:
    assert "the model was made for 40,960" in shown(capsys, "capacity --model qwen3-0.6b")


def test_does_the_file_fit_my_card_at_this_context(capsys: pytest.CaptureFixture[str]) -> None:
    words = "capacity --spec rtx4060 --shape qwen3-8b --context 8192"
    by_name = answer(capsys, f"{words} --quant q4_k_m")["report"]
    assert by_name["fits"]
    by_size = answer(capsys, f"{words} --file-gb 5.5 --kv-dtype fp8")["report"]
    assert by_size["weight_bytes"] == 5.5e9
    assert by_size["kv_bytes_per_token"] * 2 == by_name["kv_bytes_per_token"]
    assert "weights a file of 5.5 GB" in shown(capsys, f"{words} --file-gb 5.5")
    assert not answer(capsys, f"{words} --quant q8_0")["report"]["fits"]


@pytest.mark.parametrize(
    ("more", "asks"), [([], True), (["--mode", "NONE"], False), (["--itl", "60"], False)]
)
def test_a_step_that_two_modes_could_have_made_is_asked_how_it_was_launched(
    more: list[str], asks: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["explain", "--shape", "qwen2.5-7b", "--spec", "l40s", "--batch", "4", "--itl", "22"]
    assert main([*words, *more]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert ("NONE and FULL alike" in printed) is asks


# -- crossover --speculate -------------------------------------------------------------------------


def test_drafts_are_predicted_by_batch_and_written_by_a_head_they_stop_paying(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ["crossover", "--shape", "qwen3-8b", "--spec", "h100", "--speculate", "3"]
    free = json_of(capsys, *words, "--accept", "0.25")
    head = json_of(capsys, *words, "--accept", "0.25", "--draft", "head")
    assert free["tokens_a_step"] == head["tokens_a_step"] == 1 + 0.25 + 0.25**2 + 0.25**3
    assert [point["rung"] for point in free["points"]] == [4, 8, 16, 32, 64, 128, 256, 512, None]
    assert free["draft"] is None
    assert head["draft"] == "a head of qwen3-8b"
    assert all(head["speedups"][batch] < faster for batch, faster in free["speedups"].items())
    assert head["speedups"]["64"] > 1 > head["speedups"]["128"]
    assert main([*words, "--accept", "0.25", "--draft", "head"]) == 0
    assert "They stop paying at batch 128." in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("crossover --accept 0.5", "--accept and --draft say what --speculate K"),
        ("crossover --speculate 3 -o x.png", "--speculate draws no picture"),
        ("validate --speculation --fit", "--speculation has points of its own"),
    ],
)
def test_options_that_would_be_ignored_are_refused(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    assert says in capsys.readouterr().err


def test_steps_with_drafts_are_judged_by_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    drafts = json_of(capsys, "validate", "--speculation")["drafts"]
    assert len(drafts) == 30
    assert all(row["point"]["source"].startswith("https://") for row in drafts)
    assert main(["validate", "--speculation"]) == 0
    assert "30 points: median error 13%, bias +13%. In no fit." in capsys.readouterr().out
