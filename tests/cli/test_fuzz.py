"""Whatever one types, and whatever stands in a file: an answer or one line, soon and in little
memory.

Each example is a process of its own (a fork of this one) with a limit of time and of memory. What
needs a device, runs for minutes or writes into the checkout is stood in for; all that comes before
it runs.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from mini_engine.cli import (  # noqa: F401  now
    COMMANDS,
    bench,
    calibrate,
    capacity,
    crossover,
    demo,
    generate,
    generating,
    gpu,
    ladder,
    main,
    measuring,
    serve,
    trace,
    validate,
)
from mini_engine.cli.ending import FAULT, OUT_OF_MEMORY
from mini_engine.engine.generation import SHIPPED
from tests.support.fuzz_words import documents, lines, mutated

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", 500 if SLOW else 8))
DEAR = {"crossover": 4, "demo": 2, "generate": 4, "ladder": 6, "serve": 6, "validate": 3}
CPU_S, MEMORY_BYTES = 60, 1 << 30
ADDRESSES = 4 << 30  # bytes that may be asked for; most of the simulated memory is never touched
SAID = "expect up to"  # of a command that takes minutes, and has said so at once
CRASHED = 99
FILES = documents()


class Ended(NamedTuple):
    """How a command line ended."""

    code: int  # minus the number of the signal that killed it
    out: str
    err: str
    memory_bytes: int  # at most held, beyond what this process holds


@pytest.mark.parametrize("command", COMMANDS)
def test_no_words_and_no_file_break_a_command(command: str, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for file in SHIPPED.iterdir():
        if f"model/{file.name}" not in FILES and file.is_file():
            (tmp_path / "model" / file.name).symlink_to(file)
    examples = EXAMPLES if EXAMPLES > 8 else DEAR.get(command, EXAMPLES)

    @settings(max_examples=examples, suppress_health_check=list(HealthCheck))
    @given(st.data())
    def holds(data: st.DataObject) -> None:
        words = data.draw(lines(command, list(FILES)))
        files = data.draw(mutated(FILES, words))
        ended = run(words, files, tmp_path)
        if ended.code == -signal.SIGKILL and SAID in ended.err:
            return
        assert ended.code in (0, 1, 2, 130), ended
        assert ended.memory_bytes < MEMORY_BYTES, ended
        assert "Traceback" not in ended.err, ended.err
        assert FAULT not in ended.err, ended.err
        assert OUT_OF_MEMORY + ":" not in ended.err, ended.err
        assert ended.err.strip() or ended.code == 0
        if "--json" in words and ended.code:
            error = json.loads(ended.err.splitlines()[-1])["error"]
            assert error["exit_code"] == ended.code
            assert error["message"]

    holds()


def run(words: Sequence[str], files: dict[str, bytes], folder: Path) -> Ended:
    """Run a command line in a process of its own, in a folder with these files."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    for name in ("stdout.txt", "stderr.txt"):
        (folder / name).unlink(missing_ok=True)
    child = os.fork()
    if not child:
        _child(words, folder)
    _, status, used = os.wait4(child, 0)
    out, err = ((folder / n).read_text("utf-8", "replace") for n in ("stdout.txt", "stderr.txt"))
    more = 1024 * (used.ru_maxrss - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    return Ended(os.waitstatus_to_exitcode(status), out, err, more)


def _child(words: Sequence[str], folder: Path) -> NoReturn:
    code = CRASHED
    try:
        os.chdir(folder)
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + ADDRESSES
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        sys.stdin = open(os.devnull)  # noqa: SIM115  until the end of the process
        for stream in ("stdout", "stderr"):
            file = open(f"{stream}.txt", "w", errors="backslashreplace")  # noqa: SIM115
            setattr(sys, stream, file)
        stand_in()
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        sys.stdout.flush()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def stand_in() -> None:
    """Refuse what needs a device or minutes, and what writes into the checkout."""

    def refuse(*_: object, **__: object) -> NoReturn:
        raise ValueError("stood in for")

    for module, name in (
        (measuring, "backend_of"), (generating, "in_torch"),
        (gpu, "run_stages"), (gpu, "_publish"), (validate, "_fit"),
    ):  # fmt: skip
        assert hasattr(module, name)
        setattr(module, name, refuse)
