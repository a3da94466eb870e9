"""labs/measuring/ledger.py: a prediction stays as it was made, and emulated numbers stay out."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread
from rich.console import Console

from labs.measuring import ledger
from labs.runner.cli import main
from tests.support.documents import ROOT

H200, COMMAND = "NVIDIA H200", "python -m labs measure 16"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    return tmp_path / "mine"


def measure(what: str, value: float, unit: str = "ms", **more: float) -> ledger.Entry:
    return ledger.measure(what, value, unit, on=H200, command=COMMAND, **more)


def printed(found: list[ledger.Entry], width: int = 250) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(ledger.table(found))
    return console.export_text()


def test_a_prediction_waits_for_its_measurement_and_is_closed_by_it(home: Path) -> None:
    assert ledger.entries() == []
    assert not home.exists(), "reading makes no file"
    said = ledger.predict("eager", 2.0, "ms")
    assert said.open
    assert said.percent_off is None
    done = measure("eager", 2.5, low=2.4, high=2.6)
    assert not done.open
    assert (done.predicted, done.measured, done.low, done.high) == (2.0, 2.5, 2.4, 2.6)
    assert done.percent_off == pytest.approx(-20)
    assert (done.on, done.command) == (H200, COMMAND)
    assert done.date <= done.measured_date
    assert ledger.entries() == [done]


def test_each_measurement_closes_the_prediction_of_the_same_thing() -> None:
    rng = random.Random(1)
    names = [f"variant {i}" for i in range(12)]
    said = {name: rng.uniform(0.1, 9) for name in names}
    for name in names:
        ledger.predict(name, said[name], "ms")
    order = rng.sample(names, 8)
    for name in order:
        measure(name, 2 * said[name])
    for entry in ledger.entries():
        assert entry.open == (entry.what not in order)
        assert entry.percent_off == (None if entry.open else pytest.approx(-50))


def test_nothing_is_measured_that_was_not_said_before() -> None:
    with pytest.raises(ValueError, match="say first"):
        measure("eager", 2.0)
    assert ledger.entries() == []


def test_a_prediction_cannot_be_closed_twice_and_a_new_one_can_be_made() -> None:
    ledger.predict("eager", 2.0, "ms")
    measure("eager", 2.5)
    with pytest.raises(ValueError, match="predict again"):
        measure("eager", 2.0)
    ledger.predict("eager", 2.5, "ms")
    measure("eager", 2.5)
    assert [entry.percent_off for entry in ledger.entries()] == [pytest.approx(-20), 0]


def test_a_change_of_mind_before_the_measurement_stays_in_the_file(home: Path) -> None:
    ledger.predict("eager", 2.0, "ms")
    ledger.predict("eager", 3.0, "ms")
    measure("eager", 3.0)
    first, second = ledger.entries()
    assert first.revised
    assert (first.measured, second.measured) == (None, 3.0)
    assert len((home / "ledger.jsonl").read_text().splitlines()) == 3


def test_the_file_only_grows(home: Path) -> None:
    before = ""
    for step in (
        lambda: ledger.predict("a", 1, "ms"),
        lambda: ledger.predict("b", 1, "ms"),
        lambda: measure("a", 1),
        lambda: ledger.predict("b", 2, "ms"),
    ):
        step()
        after = (home / "ledger.jsonl").read_text()
        assert after.startswith(before)
        assert len(after) > len(before)
        before = after


def test_what_an_emulator_says_is_refused() -> None:
    from mini_engine.bench.evidence import EMULATED_GPU

    ledger.predict("eager", 2.0, "ms")
    for on in (EMULATED_GPU, "emulated", "CPU emulator"):
        with pytest.raises(ValueError, match="measures nothing"):
            ledger.measure("eager", 2.0, "ms", on=on, command=COMMAND)
    assert ledger.entries()[0].open


def test_another_unit_is_refused() -> None:
    ledger.predict("eager", 2.0, "ms")
    with pytest.raises(ValueError, match="predicted in ms, measured in µs"):
        measure("eager", 2000, "µs")
    assert ledger.entries()[0].open


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf")])
def test_a_value_that_is_no_time_is_refused_before_it_is_written(value: float, home: Path) -> None:
    with pytest.raises(ValueError, match="above zero"):
        ledger.predict("eager", value, "ms")
    assert not home.exists()
    ledger.predict("eager", 1, "ms")
    with pytest.raises(ValueError, match="above zero"):
        measure("eager", value)


@pytest.mark.parametrize("word", ["", "  ", "two\nlines"])
def test_words_are_on_one_line(word: str) -> None:
    with pytest.raises(ValueError, match="one line"):
        ledger.predict(word, 1, "ms")
    with pytest.raises(ValueError, match="one line"):
        ledger.predict("eager", 1, word)


@pytest.mark.parametrize(
    "line",
    [
        "not json",
        '{"event": "predicted"}',
        '{"event": "measured", "what": "x", "unit": "ms", "value": 1, "date": "d"}',
        '{"event": "guessed", "what": "x", "unit": "ms", "value": 1, "date": "d"}',
        "[1]",
    ],
)
def test_a_line_that_is_none_is_named_and_nothing_is_overwritten(line: str, home: Path) -> None:
    ledger.predict("eager", 1, "ms")
    file = home / "ledger.jsonl"
    file.write_text(text := file.read_text() + line + "\n")
    for use in (ledger.entries, lambda: ledger.predict("b", 1, "ms"), lambda: measure("eager", 1)):
        with pytest.raises(ValueError, match=r"ledger\.jsonl:2 "):
            use()
    assert file.read_text() == text


def test_a_last_line_without_an_end_does_not_swallow_the_next(home: Path) -> None:
    ledger.predict("a", 1, "ms")
    file = home / "ledger.jsonl"
    file.write_text(file.read_text().rstrip("\n"))
    ledger.predict("b", 2, "ms")
    assert [entry.what for entry in ledger.entries()] == ["a", "b"]


def test_the_table_tells_open_ones_and_leaves_revised_ones_out() -> None:
    ledger.predict("first", 7.77, "ms")
    ledger.predict("first", 2.0, "ms")
    measure("first", 2.5, low=2.4, high=2.6)
    ledger.predict("second", 1.0, "ms")
    text = printed(ledger.entries())
    assert "7.77" not in text
    assert "2.4 to 2.6" in text
    assert "-20.0%" in text
    assert H200 in text
    assert text.count("not yet measured") == 1


def test_on_a_narrow_screen_no_number_is_cut() -> None:
    what = "ITL qwen3-0.6b, batch 1, context 512, one graph, plain (lab 14)"
    ledger.predict(what, 1234.0, "ms")
    ledger.measure(
        what, 1500.0, "ms", on="NVIDIA H100 80GB HBM3", command=COMMAND, low=1400.0, high=1600.0
    )
    ledger.predict("vLLM", 3.25, "ms")
    text = printed(ledger.entries(), width=80)
    for number in ("1234 ms", "1500 ms (1400 to 1600)", "-17.7%", "3.25 ms", "not yet measured"):
        assert number in text
    assert "…" not in text


def test_the_picture_shows_every_measured_prediction(tmp_path: Path) -> None:
    path = tmp_path / "ledger.png"
    ledger.predict("open", 1.0, "ms")
    with pytest.raises(ValueError, match="nothing is measured in ms"):
        ledger.plot(ledger.entries(), path)
    ledger.predict("other unit", 1.0, "GB/s")
    measure("other unit", 1.0, "GB/s")
    with pytest.raises(ValueError, match="nothing is measured in ms"):
        ledger.plot(ledger.entries(), path)
    pictures = []
    for i, (said, found) in enumerate([(2.0, 2.05), (0.5, 1.5), (8.0, 7.0)]):
        ledger.predict(f"variant {i}", said, "ms")
        measure(f"variant {i}", found, low=0.9 * found, high=1.1 * found)
        ledger.plot(ledger.entries(), path)
        pictures.append(imread(path))
    assert not np.array_equal(pictures[0], pictures[1])
    assert not np.array_equal(pictures[1], pictures[2])


def test_labs_ledger_tells_it_and_draws_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")

    def told() -> str:
        assert main(["ledger"]) == 0
        return capsys.readouterr().out

    assert "Times, predicted and measured" not in told()
    ledger.predict("eager", 2.0, "ms")
    said = told()
    assert "not yet measured" in said
    assert "no picture: nothing is measured" in said
    measure("eager", 2.5)
    said = told()
    assert "-20.0%" in said
    assert str(home / "ledger.png") in said
    assert (home / "ledger.png").exists()


def test_it_lies_where_git_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LABS_HOME")
    path = ledger.ledger_file().relative_to(ROOT).as_posix()
    ignored = (ROOT / ".gitignore").read_text().split()
    assert any(path.startswith(line) for line in ignored if line.endswith("/"))


def test_dates_are_written_by_the_program(home: Path) -> None:
    ledger.predict("eager", 1, "ms")
    (event,) = map(json.loads, (home / "ledger.jsonl").read_text().splitlines())
    assert event["date"].startswith("20")
    assert "T" in event["date"]
