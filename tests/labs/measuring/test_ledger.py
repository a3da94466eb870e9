"""labs/measuring/ledger.py: a prediction stays as it was made, and emulated numbers stay out."""

from __future__ import annotations

from pathlib import Path

import pytest

from labs.measuring import ledger
from labs.runner.cli import main

H200, COMMAND = "NVIDIA H200", "./lab measure 14"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    return tmp_path / "mine"


def measure(what: str, value: float, unit: str = "ms", **more: float) -> ledger.Entry:
    return ledger.measure(what, value, unit, on=H200, command=COMMAND, **more)


def test_a_prediction_waits_for_its_measurement_and_is_closed_by_it(home: Path) -> None:
    assert ledger.entries() == []
    assert not home.exists(), "reading makes no file"
    said = ledger.predict("eager", 2.0, "ms")
    other = ledger.predict("graph", 1.0, "ms")
    assert said.open
    assert said.percent_off is None
    done = measure("eager", 2.5, low=2.4, high=2.6)
    assert not done.open
    assert (done.predicted, done.measured, done.low, done.high) == (2.0, 2.5, 2.4, 2.6)
    assert done.percent_off == pytest.approx(-20)
    assert (done.on, done.command) == (H200, COMMAND)
    assert done.date <= done.measured_date
    assert ledger.entries() == [done, other]


def test_nothing_is_measured_that_was_not_said_before_and_nothing_twice() -> None:
    with pytest.raises(ValueError, match="eager"):
        measure("eager", 2.0)
    assert ledger.entries() == []
    ledger.predict("eager", 2.0, "ms")
    measure("eager", 2.5)
    with pytest.raises(ValueError, match="eager"):
        measure("eager", 2.0)
    ledger.predict("eager", 2.5, "ms")
    measure("eager", 2.5)
    assert [entry.percent_off for entry in ledger.entries()] == [pytest.approx(-20), 0]


def test_the_file_only_grows_also_by_a_change_of_mind(home: Path) -> None:
    before = ""
    for step in (
        lambda: ledger.predict("eager", 2.0, "ms"),
        lambda: ledger.predict("eager", 3.0, "ms"),
        lambda: measure("eager", 3.0),
    ):
        step()
        after = (home / "ledger.jsonl").read_text()
        assert after.startswith(before)
        assert len(after) > len(before)
        before = after
    first, second = ledger.entries()
    assert first.revised
    assert (first.measured, second.measured) == (None, 3.0)


def test_what_an_emulator_says_is_refused() -> None:
    from mini_engine.bench.evidence import EMULATED_GPU

    ledger.predict("eager", 2.0, "ms")
    with pytest.raises(ValueError, match=EMULATED_GPU):
        ledger.measure("eager", 2.0, "ms", on=EMULATED_GPU, command=COMMAND)
    assert ledger.entries()[0].open


@pytest.mark.parametrize("value", [0.0, -1.0, float("nan")])
def test_a_value_that_is_no_time_is_refused_before_it_is_written(value: float, home: Path) -> None:
    with pytest.raises(ValueError, match=str(value)):
        ledger.predict("eager", value, "ms")
    assert not home.exists()


@pytest.mark.parametrize("line", ["not json", '{"event": "predicted"}'])
def test_a_line_that_is_none_is_named_and_nothing_is_overwritten(line: str, home: Path) -> None:
    ledger.predict("eager", 1, "ms")
    file = home / "ledger.jsonl"
    file.write_text(text := file.read_text() + line + "\n")
    for use in (ledger.entries, lambda: ledger.predict("b", 1, "ms"), lambda: measure("eager", 1)):
        with pytest.raises(ValueError, match=r"ledger\.jsonl:2 "):
            use()
    assert file.read_text() == text


def test_labs_ledger_tells_it_and_draws_it(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    ledger.predict("eager", 2.0, "ms")
    assert main(["ledger"]) == 0
    assert "not yet measured" in capsys.readouterr().out
    assert not (home / "ledger.png").exists()
    measure("eager", 2.5)
    assert main(["ledger"]) == 0
    said = capsys.readouterr().out
    assert "-20.0%" in said
    assert str(home / "ledger.png") in said
    assert (home / "ledger.png").exists()
