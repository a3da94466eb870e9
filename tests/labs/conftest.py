"""A learner of the test's own, who types commands into the runner."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from labs.runner import workspace
from labs.runner.cli import main
from labs.runner.cut.catalogue import Lab
from labs.runner.mistakes import diagnosis

Say = Callable[..., tuple[int, str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The learner's folder, empty at first, and a terminal that breaks no line."""
    monkeypatch.setenv("LABS_HOME", str(tmp_path / "mine"))
    monkeypatch.setenv("COLUMNS", "500")
    monkeypatch.setattr(diagnosis, "TIME_S", -1.0)  # no misconception is looked for
    return tmp_path / "mine"


@pytest.fixture
def patient(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ARG001
    """Misconceptions are looked for, and a busy machine is no reason to name nothing."""
    monkeypatch.setattr(diagnosis, "TIME_S", 60.0)


def mark_passed(lab: Lab, texts: dict[str, str]) -> None:
    """The lab is started, these are the learner's files, and a check has found nothing wrong."""
    progress = workspace.load_progress()
    workspace.start(lab, progress)
    for file, path in workspace.my_files(lab).items():
        path.write_text(texts[file], encoding="utf-8")
    workspace.note(lab, progress, True, 0, len(lab.holes))
    workspace.save_progress(progress)


@pytest.fixture
def say(home: Path, capfd: pytest.CaptureFixture[str]) -> Say:
    """Type a command into the runner. Returns the exit code and what it printed."""

    def run(*words: str) -> tuple[int, str]:
        assert not any(home.glob("*.new")), "a file half written"
        code = main(list(words))
        captured = capfd.readouterr()
        return code, captured.out + captured.err

    return run
