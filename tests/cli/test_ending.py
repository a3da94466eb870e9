"""However a program ends: an exit code and one line, never a traceback and never a blank line."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mini_engine.cli import COMMANDS, NEXT, build_parser, capacity, ending, main
from mini_engine.cli.json_schema import VERSION
from tests.support.fuzz_words import options_of

ROOT = Path(__file__).parent.parent.parent
TOO_MUCH = "out of memory: ask for less, or take a machine with more"


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (ValueError("bad word"), 2, "bad word"),
        (ValueError(), 2, "bad input (ValueError)"),
        (MemoryError(), 2, TOO_MUCH),
        (
            ImportError("libx.so: failed to map segment from shared object", name="numpy"),
            2,
            "out of memory while numpy was loaded: ask for less, or take a machine with more",
        ),
        (
            MemoryError("Unable to allocate 8 EiB"),
            2,
            "out of memory: Unable to allocate 8 EiB: ask",
        ),
        (RecursionError("maximum depth"), 2, "nested too deeply (maximum depth)"),
        (OverflowError("int too large"), 2, "too large or too small to compute with (int too"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), 2, "not UTF-8 text"),
        (OSError(errno.ENOSPC, "No space left"), 2, "standard output: no space left"),
        (IsADirectoryError(errno.EISDIR, "Is a directory", "d.json"), 2, "d.json: is a directory"),
        (ModuleNotFoundError("No module", name="tokenizers"), 2, "has no tokenizers: use .venv"),
        (ending.CheckFailed("modes differ"), 1, "modes differ"),
        (KeyError("rows"), 1, f"KeyError: 'rows' (unknown line): {ending.FAULT}"),
        (KeyboardInterrupt(), 130, "interrupted"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_every_error_is_a_code_and_a_line(error: BaseException, code: int, words: str) -> None:
    found, line = ending.ending(error)
    assert found == code
    assert words in line
    assert "\n" not in line


def test_a_fault_of_the_program_is_told_with_its_place(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(capacity, "check_card", lambda _args: {}["gone"])
    assert main(["capacity"]) == 1
    line = capsys.readouterr().err
    place = r"\(tests/cli/test_ending\.py:\d+\)"
    assert re.fullmatch(rf"mini_engine capacity: KeyError: 'gone' {place}: {ending.FAULT}\n", line)
    monkeypatch.setenv(ending.TRACEBACK, "1")
    assert main(["capacity"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "command", "says"),
    [
        (["capacity", "--bach", "3"], "capacity", "unknown: --bach 3; did you mean --batch?"),
        (["capcity"], None, "did you mean capacity?"),
        (["serve", "--mode", "ful"], "serve", "did you mean FULL?"),
        (["capacity", "--gpu", "h1000"], "capacity", "did you mean h100?"),
        (["capacity", "--model", "qwen3-06b"], "capacity", "did you mean qwen3-0.6b?"),
    ],
)
def test_a_mistyped_word_gets_a_suggestion_and_machines_get_json(
    words: list[str], command: str | None, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert says in line
    assert main([*words, "--json"]) == 2
    told = json.loads(capsys.readouterr().err)
    assert told["schema_version"] == VERSION
    error = told["error"]
    assert (error["exit_code"], error["command"]) == (2, command)
    assert says in error["message"]


@pytest.mark.parametrize(
    ("word", "says"),
    [
        ("1.5", "1.5 is not a whole number"),
        ("1e400", "1e400 is not a whole number"),
        ("9" * 5000, "999… is more than 1,000,000,000,000,000"),
        ("1e18", "is more than 1,000,000,000,000,000"),
        ("0", "0 is not 1 or more"),
        ("", "--batch: it is empty, expected a number"),
    ],
)
def test_what_is_no_count_is_refused_in_words(
    word: str, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ladder", "--batch", word]) == 2
    assert says in capsys.readouterr().err


def test_a_count_may_be_written_with_an_exponent() -> None:
    words = ["ladder", "--batch", "1e2", "--capture-sizes", "1,1e2"]
    args = build_parser(words).parse_args(words)
    assert (args.batch, args.capture_sizes) == (100, [1, 100])


def test_the_version_is_that_of_the_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert re.fullmatch(r"launch-bound \d+\.\d+\.\d+\n", capsys.readouterr().out)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_says_where_to_go_next(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([command, "--help"])
    text = capsys.readouterr().out
    following, chapter = NEXT[command]
    assert f"Next: python -m mini_engine {following}" in text
    assert (ROOT / f"course/{chapter}.md").exists()
    words = following.split()
    build_parser(words).parse_args(words)  # it is a command that runs


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_has_help(command: str) -> None:
    assert [action.dest for action in options_of(command) if not action.help] == []


# -- in a process of its own ---------------------------------------------------------------------


def test_help_imports_nothing_that_only_work_needs_and_says_the_same(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """All commands in one process: each sees the stand-ins of the one before."""
    program = (
        "import sys; from mini_engine.cli import COMMANDS, main, stand_ins; stand_ins.stand_in()\n"
        "for command in COMMANDS:\n"
        "    try: main([command, '--help'])\n"
        "    except SystemExit: pass\n"
        "real = [m for n, m in sys.modules.items() if n in stand_ins.HEAVY and m.__spec__.origin]\n"
        "print(real, file=sys.stderr)"
    )
    environment = os.environ | {"COLUMNS": "90"}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.stderr == "[]\n"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COLUMNS", "90")
        for command in COMMANDS:
            with pytest.raises(SystemExit):
                main([command, "--help"])
    assert capsys.readouterr().out == done.stdout


INTERRUPTED = """
import sys, os, signal
class Late:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Late())
sys.argv = ["x", *{words!r}]
import runpy
runpy.run_module({program!r}, run_name="__main__")
"""


@pytest.mark.parametrize(
    ("program", "words", "module"),
    [
        ("mini_engine", ["demo"], "mini_engine.cli.words"),
        ("mini_engine", ["demo"], "numpy._core.multiarray"),  # numpy makes an ImportError of it
        ("mini_engine", ["capacity"], "rich.table"),
        ("notebooks", [], "nbclient"),
        ("course.site", [], "sphinx"),
        ("course.draw", [], "mini_engine.plots"),
        ("labs", [], "labs.runner.commands"),
    ],
)
def test_ctrl_c_while_a_program_imports_is_one_line(
    program: str, words: list[str], module: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(program=program, words=words, module=module)],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 130, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(program)
    assert line.endswith(": interrupted")


def test_ctrl_c_while_a_program_works_is_one_line_whoever_catches_it() -> None:
    program = (
        "import sys, time; from mini_engine.cli import ending\n"
        "def main():\n"
        "    try:\n"
        "        print('at work', flush=True)\n"
        "        time.sleep(60)\n"
        "    except KeyboardInterrupt:\n"
        "        raise AssertionError('as a library makes of it')\n"
        "sys.exit(ending.program('program', main))"
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


def test_ctrl_c_when_the_work_is_done_and_the_program_not_yet_gone_has_its_line() -> None:
    program = (
        "import atexit, sys, time; from mini_engine.cli import ending\n"
        "def main():\n"
        "    atexit.register(lambda: print('done', flush=True) or time.sleep(60))\n"
        "    return 0\n"
        "sys.exit(ending.program('program', main))"
    )
    words = [sys.executable, "-c", program]
    with subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == "done\n"
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "program: interrupted\n")


def test_an_error_that_nobody_can_read_is_not_written_among_the_data() -> None:
    command = f"{sys.executable} -m mini_engine capacity --shape nowhere --json 2>&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("columns", ["0", "1", "99999999", "9" * 5000])
def test_a_terminal_that_does_not_know_its_width_gets_all_words(columns: str) -> None:
    environment = os.environ | {"COLUMNS": columns}
    words = [sys.executable, "-m", "mini_engine", "ladder"]
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert "1, 2, 4, 8" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_a_site_does_not_go_where_a_file_is(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    words = [sys.executable, "-m", "course.site", "-o", str(tmp_path / "file")]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == f"course.site: {tmp_path}/file: a file, expected a folder\n"


def test_help_that_cannot_be_written_is_an_error() -> None:
    command = f"{sys.executable} -m mini_engine capacity --help > /dev/full"
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert done.stderr.endswith("standard output: no space left on device\n")


def test_prompts_from_a_closed_standard_input_are_refused() -> None:
    command = f"{sys.executable} -m mini_engine generate --prompts - <&-"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (2, "")
    assert "standard input is closed" in done.stderr


@pytest.mark.parametrize(
    ("line", "code", "said"),
    [
        ("capacity > /dev/full", 2, "mini_engine capacity: standard output: no space left"),
        ("capacity --json > /dev/full", 2, '"error": {"exit_code": 2, "command": "capacity"'),
        ("capacity | head -1", 0, ""),
        ("capacity --help | head -1", 0, ""),
        ("trace -o {folder}/full.json", 2, "full.json: no space left on device"),
    ],
)
def test_a_full_disk_has_a_name_and_a_reader_that_stops_is_no_error(
    line: str, code: int, said: str, tmp_path: Path
) -> None:
    (tmp_path / "full.json").symlink_to("/dev/full")
    command = f"set -o pipefail; {sys.executable} -m mini_engine {line.format(folder=tmp_path)}"
    done = subprocess.run(["bash", "-c", command], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == (code != 0)
