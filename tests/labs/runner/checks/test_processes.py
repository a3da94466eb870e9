"""A check ends all that it started, and says where in the learner's file it went wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from labs.runner.checks.checking import Outcome, Report, check_files
from labs.runner.cut.catalogue import ROOT, Lab, all_labs, lab_number

LAB = lab_number("4")
ENGINE = LAB.reference()["launch_model.py"]
BEGINS = len(ENGINE.splitlines()) + 2
RIGHT = "return kernels * kernel_us / itl_us"
TEST = "in “utilisation counts kernels and nothing else”"
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")


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


def is_gone(pid: str) -> bool:
    """Within five seconds."""
    status = Path(f"/proc/{pid}/stat")
    for _ in range(100):
        if not status.exists() or status.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_what_a_check_started_does_not_outlive_it(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    start = (
        "from subprocess import Popen",
        f"open({str(note)!r}, 'w').write(str(Popen(['sleep', '600']).pid))",
    )
    assert checked(tmp_path, *start, RIGHT).passed
    assert is_gone(note.read_text())


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc")
def test_ctrl_c_ends_the_tests_of_a_check(tmp_path: Path) -> None:
    note = tmp_path / "pid"
    sleep = (f"open({str(note)!r}, 'w').write(str(os.getpid()))", "time.sleep(600)")
    ctrl_c = threading.Timer(3.0, signal.pthread_kill, [threading.get_ident(), signal.SIGINT])
    ctrl_c.start()
    with pytest.raises(KeyboardInterrupt):
        checked(tmp_path, "import os, time", *sleep, lab=replace(LAB, test_s=60))
    assert is_gone(note.read_text())


@needs_fork
def test_a_loop_of_forks_makes_as_many_processes_and_not_two_to_that_power(tmp_path: Path) -> None:
    born = tmp_path / "born"
    note = f"with open({str(born)!r}, 'a') as file: file.write('+')"
    loop = ("for _ in range(12):", "    if os.fork() == 0:", f"        {note}")
    report = checked(tmp_path, "import os", *loop, RIGHT)
    assert report.passed
    assert len(born.read_text()) <= 12 * len(report.outcomes) * 4


def test_an_endless_loop_is_named_with_its_test_its_line_and_what_it_holds(tmp_path: Path) -> None:
    quick = replace(LAB, test_s=1)
    report = checked(tmp_path, "n = 0", "while True:", "    n += 1", lab=quick)
    assert report.stopped.startswith(f"stopped after 1 s {TEST}")
    assert report.where in {f"{tmp_path}/launch_model.py:{BEGINS + 2 + i}" for i in (0, 1)}
    assert "kernels=300" in report.inputs
    slow = {lab.number for lab in all_labs() if lab.test_s > 12}
    assert slow == {"13", "13b"}, "named within 15 s, but torch.compile may take longer than that"


@pytest.mark.skipif(sys.platform != "linux", reason="memory is limited by Linux's RLIMIT_AS")
def test_a_huge_allocation_is_a_failure_of_its_test_alone(tmp_path: Path) -> None:
    assert failed(checked(tmp_path, "return bytearray(10**14)[0]")).error == "MemoryError"


@pytest.mark.parametrize(
    ("body", "says"),
    [
        ("import os; os._exit(11)", "with code 11"),
        ("import ctypes; ctypes.string_at(0)", "with SIGSEGV"),
        ("import os; os.abort()", "with SIGABRT"),
    ],
)
def test_a_process_that_ends_is_told_with_the_test(tmp_path: Path, body: str, says: str) -> None:
    report = checked(tmp_path, body)
    assert says in report.stopped
    assert TEST in report.stopped
    if "SIG" in says:
        assert report.where == f"{tmp_path}/launch_model.py:{BEGINS + 1}"


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


def test_a_failure_shows_its_statement_its_values_and_what_was_printed(tmp_path: Path) -> None:
    outcome = failed(checked(tmp_path, "print('asked for', kernels)", "return 0.25"))
    assert outcome.asserted == "assert utilisation(300, 2.0, 1200.0) == pytest.approx(0.5)"
    assert "0.25 == 0.5" in outcome.message
    assert outcome.printed == "asked for 300\n"


def test_a_server_without_the_compiler_never_imports_it() -> None:
    """The first call of a function that PyTorch keeps from Dynamo would, and take a second."""
    pytest.importorskip("torch")
    program = (
        "import labs.runner.checks.preload, sys, torch\n"
        "from torch.utils._python_dispatch import TorchDispatchMode\n"
        "class Seen(TorchDispatchMode):\n"
        "    def __torch_dispatch__(self, op, types, args=(), kwargs=None): return op(*args)\n"
        "with Seen(): print(float(torch.ones(2).sum()), 'torch._dynamo' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT,
                          env=os.environ | {"LABS_NO_COMPILER": "1"})  # fmt: skip
    assert done.stdout.split() == ["2.0", "False"]
