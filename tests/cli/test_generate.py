"""`generate`: what is read, refused and said on the way from a folder and prompts to a text."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mini_engine.cli import main
from mini_engine.engine.generation import SHIPPED
from tests.cli.test_commands import json_of
from tests.cli.test_refusals import refused

SHORT = ["generate", "--max-new-tokens", "2", "--prompt", "Return the"]


def shipped_copy(folder: Path, **changes: Any) -> Path:
    """The shipped checkpoint with some fields of its config changed."""
    shutil.copytree(SHIPPED, folder)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


# -- folders -------------------------------------------------------------------------------------


def test_a_tokenizer_of_another_model_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = shipped_copy(tmp_path / "model")
    path = folder / "tokenizer.json"
    data = json.loads(path.read_text())
    data["model"]["vocab"]["\u0120the"] = 10**6  # " the" in byte-level BPE
    path.write_text(json.dumps(data))
    said = refused(capsys, *SHORT, "--model", str(folder))
    assert "beyond vocab_size" in said


# -- speculation ---------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["sim", "cuda"])
@pytest.mark.parametrize("drawn", [[], ["--temperature", "0.8", "--seed", "2"]])
def test_drafts_change_no_text_and_make_fewer_steps(
    backend: str, drawn: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    if backend == "cuda":
        pytest.importorskip("torch")
    words = ["generate", "--backend", backend, "--max-new-tokens", "24", *drawn]
    words += ["--prompt", "Return True if x is a list. Return True if x is a", "--prompt", "Remove"]
    plain = json_of(capsys, *words)
    assert plain["drafts"] == {"asked": 0, "hit": 0}
    for who in ("ngram", f"draft:{SHIPPED}"):
        drafted = json_of(capsys, *words, "--speculate", f"{who}:3")
        assert [p["tokens"] for p in drafted["prompts"]] == [p["tokens"] for p in plain["prompts"]]
        assert drafted["mode"] == "FULL_AND_PIECEWISE"
        assert 0 < drafted["drafts"]["hit"] <= drafted["drafts"]["asked"]
    assert drafted["drafts"]["hit"] > 0.8 * drafted["drafts"]["asked"]  # none but behind an end


@pytest.mark.parametrize("word", ["ngram", "ngram:0", "ngram:16", "draft:3", "ngram:a:3", "me:3"])
def test_drafts_that_nobody_could_write_are_refused(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "--speculate" in refused(capsys, *SHORT, "--speculate", word)


@pytest.mark.parametrize("backend", ["sim", "cuda"])
def test_a_draft_model_with_other_tokens_or_a_shorter_context_is_refused(
    backend: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    if backend == "cuda":
        pytest.importorskip("torch")
    words = [*SHORT, "--backend", backend, "--speculate"]
    other = shipped_copy(tmp_path / "other", vocab_size=300)
    assert main([*words, f"draft:{other}:3"]) == 2
    assert "draft model" in capsys.readouterr().err
    short = shipped_copy(tmp_path / "short", max_position_embeddings=3)
    assert main([*words, f"draft:{short}:3"]) == 2
    assert "has a context of 3 tokens" in capsys.readouterr().err
    if backend == "cuda":
        assert main([*words, "ngram:3", "--steps-per-replay", "2"]) == 2
        assert "num_speculative_tokens 3 and steps_per_replay 2" in capsys.readouterr().err
