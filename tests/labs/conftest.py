"""A learner of the test's own, who types commands into the runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labs.runner.cli import main
from labs.runner.mistakes import diagnosis

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learner's folder, empty at first, and a terminal that breaks no line."""
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(diagnosis, "TIME_S", 60.0)  # a busy machine is no reason to name nothing
    return tmp_path / "mine"


@pytest.fixture
def say(home: Path, capfd: pytest.CaptureFixture[str]) -> Say:
    """Type a command into the runner. Returns the exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        assert not any(home.glob("*.new")), "a file half written"
        code = main(list(words))
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return run
