"""Nothing that the card or the model cannot do is predicted, and nothing is dropped in silence."""

from __future__ import annotations

import argparse
import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mini_engine.cli import build_parser, load, main
from mini_engine.step.figures import FOLDERS

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def answer(capsys: pytest.CaptureFixture[str], words: str) -> dict[str, Any]:
    assert main([*shlex.split(words), "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


def shown(capsys: pytest.CaptureFixture[str], words: str) -> str:
    assert main(shlex.split(words)) == 0
    return " ".join(capsys.readouterr().out.split())


def both(words: str) -> tuple[dict[str, Any], str]:
    """What one run finds, and what it shows."""
    parsed = build_parser(shlex.split(words)).parse_args(shlex.split(words))
    found = load(parsed.command).run(parsed, Console(file=io.StringIO()))
    screen = io.StringIO()
    load(parsed.command).show(found, Console(file=screen))
    return found, " ".join(screen.getvalue().split())


EXAMPLES = re.findall(
    r"^\.venv/bin/python -m mini_engine (crossover.*)$", (ROOT / "README.md").read_text(), re.M
)


@pytest.mark.parametrize(
    "words", [*EXAMPLES, "crossover --shape qwen3-8b --spec l4 --context 2048"]
)
def test_crossover_ends_where_capacity_says_that_no_more_fits(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    found, told = both(words)
    given = f"--shape {found['shape']} --spec {found['spec']} --context {found['context']}"
    room = answer(capsys, f"capacity {given}")["max_batch"]
    assert found["max_batch"] == room
    assert found["rows"][-1]["batch"] == min(256, room)
    assert found["fits"] == (room >= 256)
    assert not found["fits"], "an example that fits whole shows nothing: give a larger one"
    assert f"Batches above {room:,} are left out" in told


def test_a_crossover_beyond_the_card_is_called_that() -> None:
    slow = json.loads((FOLDERS["host"] / "server.json").read_text())
    slow["op_us"]["value"] *= 100
    Path("slow.json").write_text(json.dumps(slow))
    found, told = both("crossover --spec rtx4090 --host slow.json")
    assert found["crossover_batch"] > found["max_batch"]
    assert not found["crossover_fits"]
    assert "so many requests do not fit" in told


def test_a_batch_that_does_not_fit_has_no_predicted_step(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = "capacity --batch 1000000000"
    found = answer(capsys, words)
    assert (found["fits"], found["predicted"]) == (False, None)
    assert "It does not fit. No step is predicted." in shown(capsys, words)


def test_graphs_that_do_not_fit_are_marked() -> None:
    found, told = both("ladder --shape qwen3-8b --spec rtx4060")
    assert not found["fits"]
    assert "With the weights they do not fit the rtx4060" in told


@pytest.mark.parametrize(
    "command", ["ladder --capture-sizes", "crossover --ladder", "serve --ladder"]
)
def test_sizes_are_sorted_and_those_above_the_limit_are_named(command: str) -> None:
    found, told = both(f"{command} 8,4,99999999,2,4")
    assert list(found["capture_sizes"]) == [2, 4, 8]
    assert found["left_out_sizes"] == [99999999]
    assert "Not captured: 99,999,999. No step has more than max_num_batched_tokens 8,192." in told


def test_a_ladder_of_none_but_dropped_sizes_is_no_silence(
    capsys: pytest.CaptureFixture[str],
) -> None:
    told = shown(capsys, "ladder --capture-sizes 99999999")
    assert "0 capture sizes no graphs: every step is eager Not captured: 99,999,999." in told


@pytest.mark.parametrize(
    "words", ["capacity --spec RTX4090 --shape QWEN3-1.7B", "trace --shape Qwen3-0.6B --spec H200"]
)
def test_names_are_names_in_upper_and_in_lower_case(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def without_time(found: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in found.items() if key != "wall_s"}

    assert without_time(answer(capsys, words)) == without_time(answer(capsys, words.lower()))


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("trace --batch 1000000000", "batch 1,000,000,000: 2,509 requests of 512 tokens fit"),
        ("trace --shape qwen3-8b --spec rtx4060", "takes 16.0 GiB, and rtx4060 has 8.0"),
        ("trace --context 40961", "made for 40,960 tokens at most"),
        ("demo --batch 1000000000", "batch 1,000,000,000: "),
        ("serve --max-model-len 40961", "made for 40,960 tokens at most"),
        ("serve --max-num-batched-tokens 1", "as many tokens as requests"),
        ("serve --max-num-seqs 1000000000", "expected 65,536 at most"),
        ("capacity --batch 1000000001", "expected 1,000,000,000 at most"),
        (f"capacity --batch 1{'0' * 400}", "the most there can be"),
        (f"ladder --histogram 5:1{'0' * 400}", "expected rows:steps, both 1 to 10^12"),
        ("ladder --histogram /dev/zero", "larger than"),
        ("capacity --trace /dev/zero", "row 1: 65,536 characters"),
        ("serve --trace /dev/zero", "row 1: 65,536 characters"),
        ("serve --trace /dev/zero --skip-bad-rows", "row 1: 65,536 characters"),
        ("trace --read /dev/zero", "larger than"),
        ("crossover --spec deep.json", "nested too deeply"),
        ("crossover --host deep.json", "nested too deeply"),
        ("crossover --engine deep.json", "nested too deeply"),
        ("validate --points deep.json", "nested too deeply"),
        ("trace --read deep.json", "nested too deeply"),
        ("ladder --histogram deep.json", "nested too deeply"),
        ("serve --trace deep.json", "no column TIMESTAMP"),
        ("serve --preemption swap --swap-space 1e-9", "--swap-space 1e-09 holds no block: one"),
        ("serve --trace long.jsonl", "none of 1 requests fits"),
        ("trace --read none.json --mode FULL", "nothing else: leave out --mode"),
        ("trace --read none.json --batch 7", "nothing else: leave out --batch"),
        ("trace --read none.json -o other.json", "nothing else: leave out --out"),
        ("trace --read none.json", 'none.json: no event with a duration ("ph": "X")'),
        ("trace --spec mine.json -o ./mine.json", "mine.json: it is read for this"),
        ("serve --trace t.png -o t.png", "t.png: it is read for this: give another file"),
        ("ladder --histogram t.png -o t.png", "t.png: it is read for this"),
        ("ladder --mode NONE --histogram 33:100", "--mode NONE captures nothing"),
        ("ladder --histogram 3_3:100", "entry 3_3:100, expected rows:steps"),
        ("ladder --histogram twice.json", "twice.json: '33' stands twice"),
        ("capacity --vram-gb 8 --host laptop", "--host is for the predicted step"),
        ("capacity --vram-gb 8 --engine nothing", "--engine is for the predicted step"),
        ("generate --backend cuda --spec l4", "--spec is of the simulated GPU"),
        ("generate --backend cuda --host laptop", "--host is of the simulated GPU"),
        ("calibrate -o a.json --evidence a.json", "a.json: the card goes there"),
        ("calibrate -o a.json --evidence a-host.json", "a-host.json: the host goes there"),
        ("gpu --device cpu --minutes inf", "--minutes inf: expected more than 0, and less"),
    ],
    ids=lambda value: value[:40],
)
def test_what_cannot_be_is_refused_in_one_line(
    words: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("deep.json").write_text("[" * 60_000)
    begin = {"ph": "B", "pid": 1, "tid": 1, "name": "k", "ts": 0}
    Path("none.json").write_text(json.dumps({"traceEvents": [begin]}))
    row = {"arrival_s": 0, "prompt_tokens": 10**14, "output_tokens": 3}
    Path("long.jsonl").write_text(json.dumps(row))
    Path("t.png").write_text('{"33": 5}')
    Path("twice.json").write_text('{"33": 100, "33": 20}')
    Path("mine.json").write_text((FOLDERS["card"] / "h200.json").read_text())
    assert main(shlex.split(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert says in printed.err


def test_a_histogram_in_words_may_be_longer_than_a_path(capsys: pytest.CaptureFixture[str]) -> None:
    words = ",".join(f"{rows}:5" for rows in range(1, 1500))
    assert answer(capsys, f"ladder --histogram {words} --rungs 2")["histogram"]["steps"] == 5 * 1499


@pytest.mark.parametrize("command", ["serve", "ladder", "crossover", "capacity", "trace"])
def test_every_option_has_help(command: str) -> None:
    parser = argparse.ArgumentParser()
    load(command).add_arguments(parser)
    assert [a.dest for a in parser._actions if not a.help] == []
