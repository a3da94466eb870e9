"""Names out of files, in tables and in pictures: what looks like markup, a formula or an order to
the terminal is text like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mini_engine.cli import main
from mini_engine.step.cards import FOLDERS

NAMES = ("[/bold]", "[red2]x", "[bold]", ":cat:", "$\\frac$", "a$b_{c$")


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("command", ["capacity", "crossover --max-batch 4", "ladder", "trace"])
def test_a_card_may_have_any_printable_name(
    command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = json.loads((FOLDERS["card"] / "h200.json").read_text(encoding="utf-8"))
    Path("card.json").write_text(json.dumps({**card, "name": name}))
    assert main([*command.split(), "--spec", "card.json"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert name in "".join(out.split("\n"))


@pytest.mark.parametrize("name", ["", "  ", "a\x1b[2Jb", "a\nb", "\ud800"])
def test_a_name_that_cannot_be_printed_is_refused(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    card = json.loads((FOLDERS["card"] / "h200.json").read_text(encoding="utf-8"))
    Path("card.json").write_text(json.dumps({**card, "name": name}))
    assert main(["crossover", "--spec", "card.json"]) == 2
    assert "card.json: name is" in capsys.readouterr().err
