"""A check ends all that it started, and says where in the learner's file it went wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from labs.runner.checks.checking import Outcome, Report, check_files
from labs.runner.cut.catalogue import Lab, all_labs, lab_number
from tests.support.documents import ROOT

LAB = lab_number(1)
ENGINE = LAB.reference()["launch_model.py"]
BEGINS = len(ENGINE.splitlines()) + 2


def checked(folder: Path, *body: str, whole: str = "", lab: Lab = LAB) -> Report:
    """Check the engine's file with another `utilisation`, whose body starts at line BEGINS + 1."""
    path = folder / "launch_model.py"
    own = "\ndef utilisation(kernels, kernel_us, itl_us):\n" + "".join(f"    {b}\n" for b in body)
    path.write_text(whole or ENGINE + own)
    return check_files(lab, {"launch_model.py": path})


def failed(report: Report) -> Outcome:
    """The first of the failing tests, which are those of `utilisation`."""
    assert 0 < len(report.failed) < len(report.outcomes) / 2
    return report.failed[0]


RIGHT = "return kernels * kernel_us / itl_us"
TEST = "in “utilisation counts kernels and nothing else”"


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_a_check_started_does_not_outlive_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    start = (
        "from subprocess import Popen",
        f"open({str(note)!r}, 'w').write(str(Popen(['sleep', '600']).pid))",
    )
    assert checked(tmp_path, *start, RIGHT).passed
    status = Path(f"/proc/{note.read_text()}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return
        time.sleep(0.05)
    pytest.fail("it still runs")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_a_test_does_not_run_the_tests_again(tmp_path: Path) -> None:
    report = checked(tmp_path, "import os", "os.fork()", RIGHT)
    assert report.passed
    names = [outcome.test for outcome in report.outcomes]
    assert len(names) == len(set(names))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_loop_of_forks_makes_as_many_processes_and_not_two_to_that_power(tmp_path: Path) -> None:
    born = tmp_path / "born"
    note = f"with open({str(born)!r}, 'a') as file: file.write('+')"
    loop = ("for _ in range(12):", "    if os.fork() == 0:", f"        {note}")
    report = checked(tmp_path, "import os", *loop, RIGHT)
    assert report.passed
    assert len(born.read_text()) <= 12 * len(report.outcomes) * 4


def test_an_endless_loop_is_named_with_its_line_and_what_it_holds(tmp_path: Path) -> None:
    quick = replace(LAB, test_s=2)
    report = checked(tmp_path, "n = 0", "while True:", "    n += 1", lab=quick)
    assert TEST in report.stopped
    assert "never end" in report.stopped
    assert report.where in {f"{tmp_path}/launch_model.py:{BEGINS + 2 + i}" for i in (0, 1)}
    assert "kernels=300" in report.inputs
    assert "stopped after 2 s" in report.stopped
    slow = {lab.number for lab in all_labs() if lab.test_s > 12}
    assert slow == {15, 21}, "named within 15 s, but torch.compile may take longer than that"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os; os._exit(11)", "with code 11"),
        ("import ctypes; ctypes.string_at(0)", "with SIGSEGV"),
        ("import os; os.abort()", "with SIGABRT"),
    ],
)
def test_a_process_that_ends_is_told_with_the_test_and_the_line(
    tmp_path: Path, body: str, says: str
) -> None:
    report = checked(tmp_path, body)
    assert says in report.stopped
    assert TEST in report.stopped
    assert report.where == f"{tmp_path}/launch_model.py:{BEGINS + 1}"


def test_where_a_lab_has_kernels_a_crash_may_be_an_address_beyond_a_tensor(tmp_path: Path) -> None:
    with_kernels = replace(LAB, packages=("triton",))
    for lab, says in ((LAB, "compiled code"), (with_kernels, "is a mask missing")):
        assert says in checked(tmp_path, "import os; os.abort()", lab=lab).stopped


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("import a_module_that_is_nowhere", "ModuleNotFoundError"),
        ("TABLE = {}['a']", "KeyError: 'a'"),
    ],
)
def test_an_import_that_fails_is_told_with_its_line(tmp_path: Path, line: str, says: str) -> None:
    report = checked(tmp_path, whole=f"{ENGINE}{line}\n")
    assert says in report.stopped
    assert report.where == f"{tmp_path}/launch_model.py:{BEGINS - 1}"
    assert report.line == line


def test_an_exit_in_a_test_is_a_failure_of_this_test_alone(tmp_path: Path) -> None:
    outcome = failed(checked(tmp_path, "raise SystemExit('enough')"))
    assert (outcome.error, outcome.message) == ("SystemExit", "enough")
    assert outcome.where == f"{tmp_path}/launch_model.py:{BEGINS + 1}"


def test_a_write_into_the_repository_is_told_and_one_beside_it_is_not(tmp_path: Path) -> None:
    inside, beside = ROOT / "labs" / "a_note_of_a_test.txt", tmp_path / "beside.txt"
    write = f"[open(p, 'w').close() for p in ({str(inside)!r}, {str(beside)!r})]"
    try:
        report = checked(tmp_path, write, RIGHT)
    finally:
        inside.unlink(missing_ok=True)
    assert report.passed
    assert report.wrote == [(str(inside), f"{tmp_path}/launch_model.py:{BEGINS + 1}")]


def test_a_failure_shows_its_inputs_its_values_and_what_was_printed(tmp_path: Path) -> None:
    outcome = failed(checked(tmp_path, "print('asked for', kernels)", "return 0.25"))
    assert outcome.asserted == "assert utilisation(300, 2.0, 1200.0) == pytest.approx(0.5)"
    assert (outcome.got, outcome.expected) == ("0.25", "0.5")
    assert outcome.printed == "asked for 300\n"


def test_a_breakpoint_without_a_terminal_says_what_to_type(tmp_path: Path) -> None:
    outcome = failed(checked(tmp_path, "breakpoint()", RIGHT))
    assert "check --debug" in outcome.message


def labs(home: Path, *words: str, typed: str = "") -> subprocess.CompletedProcess[str]:
    """A command of the runner in a process of its own."""
    command = [sys.executable, "-m", "labs", *words]
    environment = os.environ | {"LABS_HOME": str(home)}
    return subprocess.run(
        command, cwd=ROOT, env=environment, input=typed, capture_output=True, text=True
    )


def test_a_lock_that_a_package_made_is_not_called_leaked(tmp_path: Path) -> None:
    """tqdm makes one, and `torch.fx.Interpreter` a bar of tqdm."""
    labs(tmp_path, "start", "1")
    lock = "\n\nfrom multiprocessing import get_context\n\nLOCK = get_context().RLock()\n"
    (tmp_path / LAB.name / "launch_model.py").write_text(ENGINE + lock)
    said = labs(tmp_path, "check", "1")
    assert (said.returncode, said.stderr) == (0, "")


def test_debug_gives_the_terminal_to_a_breakpoint(tmp_path: Path) -> None:
    labs(tmp_path, "start", "1")
    own = f"\n\ndef utilisation(kernels, kernel_us, itl_us):\n    breakpoint()\n    {RIGHT}\n"
    (tmp_path / LAB.name / "launch_model.py").write_text(ENGINE + own)
    said = labs(tmp_path, "check", "1", "--debug", typed="p 1000 + kernels\nq\n")
    assert "(Pdb) 1300" in said.stdout
    assert "the debugger was left" in said.stdout
    assert said.returncode == 1
