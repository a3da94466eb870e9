"""However a program ends: an exit code and one line, never a traceback."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mini_engine import __version__
from mini_engine.cli import COMMANDS, build_parser, ending, main, options

ROOT = Path(__file__).parent.parent.parent
OutOfMemoryError = type("OutOfMemoryError", (RuntimeError,), {})  # torch's, without torch


@pytest.mark.parametrize(
    ("error", "code", "value"),
    [
        (ValueError("bad word"), 2, "bad word"),
        (ValueError(), 2, "ValueError"),
        (MemoryError(), 2, "out of memory"),
        (OutOfMemoryError("CUDA out of memory. Tried 8 GiB"), 2, "out of memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes"), 2, "out of memory"),
        (OverflowError("int too large"), 2, "int too large"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 2, "utf-8"),
        (OSError(errno.ENOSPC, "No space left"), 2, "standard output: no space left"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "d.json"), 2, "d.json"),
        (ModuleNotFoundError("No module", name="tokenizers"), 2, "tokenizers"),
        (ending.CheckFailed("modes differ"), 1, "modes differ"),
        (KeyError("rows"), 1, ending.FAULT),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_a_code_and_a_line(error: BaseException, code: int, value: str) -> None:
    found, line = ending.ending(error)
    assert found == code
    assert value in line
    assert "\n" not in line


def test_a_fault_of_the_program_is_told_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(options, "server", lambda _args: {}["gone"])
    assert main(["capacity"]) == 1
    line = capsys.readouterr().err
    assert re.fullmatch(rf".*KeyError: 'gone' \(.*test_ending\.py:\d+\): {ending.FAULT}\n", line)
    monkeypatch.setenv(ending.TRACEBACK, "1")
    assert main(["capacity"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_an_error_gives_no_orders_to_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    def fails() -> int:
        raise ValueError("tensor \x1b[2Jgone\x07")

    assert ending.guarded("x", fails) == 2
    assert capsys.readouterr().err == "x: tensor \\x1b[2Jgone\\x07\n"


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"launch-bound {__version__}\n"
    assert f'version = "{__version__}"' in (ROOT / "pyproject.toml").read_text()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_teaches_says_where_to_go_next_and_leaves_no_option_out(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    _, following, chapter = COMMANDS[command]
    assert f"python -m mini_engine {command}" in text.partition("options:")[0]
    assert f"Next: python -m mini_engine {following}" in text
    assert list(ROOT.glob(f"course/{chapter:02}-*.md"))
    words = following.split()
    build_parser(words).parse_args(words)  # it is a command that runs


# -- in a process of its own ---------------------------------------------------------------------


def test_ctrl_c_while_a_program_works_is_one_line() -> None:
    program = (
        "import sys, time; from mini_engine.cli.ending import guarded\n"
        "def main():\n"
        "    print('at work', flush=True)\n"
        "    time.sleep(60)\n"
        "sys.exit(guarded('program', main))"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "at work\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "program: interrupted\n")


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("capacity > /dev/full", 2, "standard output: no space left"),
        ("capacity --json > /dev/full", 2, '{"exit_code": 2, "command": "capacity"'),
        ("capacity | head -1", 0, ""),
        ("serve --json | head -1", 0, ""),
        ("capacity --help | head -1", 0, ""),
        ("trace -o {folder}/full.json", 2, "full.json: no space left on device"),
    ],
)
def test_a_full_disk_has_a_name_and_a_reader_that_stops_is_no_error(
    line: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "full.json").symlink_to("/dev/full")
    command = f"set -o pipefail; {sys.executable} -m mini_engine {line.format(folder=tmp_path)}"
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env=dict(os.environ)
    )
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)
