"""Bad words and bad files: exit code 2 and one line that holds the value, never a traceback."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from mini_engine.cli import COMMANDS, build_parser, main

REFUSED = [
    # words -> what the line must hold: the value, or the name of what it belongs to
    ("fly", "fly"),
    ("capacity --bach 3", "--bach"),
    ("generate --model /nowhere", "/nowhere"),
    ("generate --model Qwen/Qwen3-0.6B", "--backend cuda"),
    ("generate --capture-sizes 1,-2", "-2"),
    ("generate --temperature -1", "-1"),
    ("generate --temperature 1 --top-p 2", "2"),
    ("generate --max-new-tokens 0", "0"),
    ("generate --kernels 5", "--backend cuda"),
    ("generate --backend cuda --spec l4", "--spec l4"),
    ("demo --shape gpt-7", "gpt-7"),
    ("demo --batch 1000000000", "1,000,000,000"),
    ("crossover --spec h1000", "did you mean h100?"),
    ("crossover --context 40961", "40,960"),
    ("crossover --shape qwen3-8b --spec rtx4060", "rtx4060"),
    ("crossover -o /dev/null/x.png", "/dev/null"),
    ("crossover -o x.txt", "x.txt"),
    ("crossover --spec deep.json", "deep.json"),
    ("crossover --spec list.json", "list.json"),
    ("ladder --batch 1025", "1025"),
    (f"ladder --batch {'9' * 4000}", "999"),
    ("ladder --max-num-seqs 1000000000", "1000000000"),
    ("ladder --capture-sizes 0,2", "0"),
    ("ladder --spec-tokens -1", "-1"),
    ("capacity --model qwen3-06b", "did you mean qwen3-0.6b?"),
    ("capacity --file-gb 5.5 --quant int4", "int4"),
    ("capacity --file-gb inf", "inf"),
    ("capacity --tp 3", "num_heads 16 does not divide by 3 ranks"),
    ("serve --tp 0", "0"),
    ("serve --trace /nowhere.csv", "/nowhere.csv"),
    ("serve --trace long.jsonl", "long.jsonl"),
    ("serve --trace odd.csv", "at,in,out"),
    ("serve --trace odd.csv --columns time=at,prompt=in,new=words", "words"),
    ("serve --trace odd.csv --columns time=at,prompt=in,new=out", "line 2: out 'many'"),
    ("serve --columns time=at,prompt=in", "time=at,prompt=in"),
    ("serve --columns time=at,time_ms=at,prompt=in,new=out", "time_ms=at"),
    ("serve --columns when=at,prompt=in,new=out", "when=at"),
    ("serve --kv-blocks 1", "1 blocks"),
    ("serve --mode ful", "FULL_AND_PIECEWISE"),
    ("serve --share 0.5", "--shared-prefix"),
    ("trace --context 0", "0"),
    ("trace --shape qwen3-8b --spec rtx4070", "rtx4070"),
    ("trace -o step.svg", "step.svg"),
    ("trace --recorded none.json", "none.json"),
    ("trace --recorded list.json", "list.json"),
    ("trace --recorded sglang", "sglang"),
    ("trace --recorded sglang-qwen3-8b-h100-eager --batch 3", "3"),
    ("validate --points deep.json", "deep.json"),
]


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("deep.json").write_text("[" * 60_000)
    Path("list.json").write_text("[]")
    begin = {"ph": "B", "pid": 1, "tid": 1, "name": "k", "ts": 0}
    Path("none.json").write_text(json.dumps({"traceEvents": [begin]}))
    row = {"arrival_s": 0, "prompt_tokens": 10**14, "output_tokens": 3}
    Path("long.jsonl").write_text(json.dumps(row))
    Path("odd.csv").write_text("at,in,out\n1,5,many\n")
    Path("latin1.txt").write_bytes("déjà".encode("latin-1"))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """The one line that bad input gets."""
    assert main(list(words)) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1, err
    return err


@pytest.mark.parametrize(("words", "value"), REFUSED, ids=lambda word: word[:50])
def test_a_bad_value_is_exit_code_2_and_one_line_that_holds_it(
    words: str, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert value in refused(capsys, *shlex.split(words)).partition(": ")[2]


def options(command: str) -> list[str]:
    """Every option of a command that takes a value."""
    subparsers = build_parser([command])._subparsers
    assert subparsers
    choices = subparsers._group_actions[0].choices
    assert isinstance(choices, dict)
    actions = choices[command]._actions
    return [a.option_strings[-1] for a in actions if a.option_strings and a.nargs != 0]


@pytest.mark.parametrize("command", COMMANDS)
def test_an_empty_word_is_never_taken_for_the_default(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for option in options(command):
        for words in ([option, ""], [f"{option}="], [option, "  "]):
            assert option in refused(capsys, command, *words)


def test_machines_get_the_line_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    error = json.loads(refused(capsys, "capacity", "--gpu", "abacus", "--json"))["error"]
    assert (error["exit_code"], error["command"]) == (2, "capacity")
    assert "abacus" in error["message"]
