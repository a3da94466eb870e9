"""Nothing that the card or the model cannot do is predicted, and nothing is dropped in silence."""

from __future__ import annotations

import io
import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from mini_engine.cli import build_parser, load, main
from mini_engine.step.cards import FOLDERS

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
