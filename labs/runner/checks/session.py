"""One run of a lab's tests in a process of its own, reported event by event.

In:  the test file, the files that stand in for the engine's modules, limits. Out: lines of JSON,
written at once, so that the waiting process knows which test was running when time ran out.

    {"event": "collected", "tests": 12}
    {"event": "start", "test": "test_replay_ignores_a_rebound_input"}
    {"event": "end", "test": "…", "outcome": "failed", "todo": "", "catches": ["rebind-input"], …}
    {"event": "broken", "message": "…"}           the tests could not even be collected
    {"event": "loop", …}                          a test took too long (guard.py)
    {"event": "over", "cpu_s": 0.8}               all tests have run, in so much CPU time

The process serves this run alone: it substitutes modules, limits its memory and may be killed.
"""

from __future__ import annotations

import json
import multiprocessing.util
import os
import pdb
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from labs.runner.checks.evidence import ANY, explained, same_outcome
from labs.runner.checks.guard import Guard
from labs.runner.checks.job import Job
from labs.runner.cut.catalogue import ROOT, read_lab
from labs.runner.cut.holes import tests_of
from labs.runner.cut.substitute import substitute

CATCHES = "catches(*ids): a test that fails if the code holds one of these misconceptions"
NOT_USED = (  # of pytest's own plugins: a third of the time that it takes to begin
    "cacheprovider", "faulthandler", "doctest", "junitxml", "pastebin", "stepwise", "setuponly",
    "setupplan", "unittest", "legacypath", "threadexception",
    "logging",  # keeps every word that Dynamo writes into its trace
    "unraisableexception",  # collects garbage after each test
)  # fmt: skip
PRINTED = 2000  # characters kept of what the learner prints in one test


def run_job(job: Job) -> None:
    """Run pytest on the job. Returns when pytest is done, whatever the tests did."""
    os.environ.update(job.environment)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # slow to load, and none is used
    sys.path.insert(0, str(ROOT))
    if hasattr(os, "setpgid"):  # a group of its own, which ends with it
        os.setpgid(0, 0)
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drops what pytest prints
    os.dup2(1, 2)
    if sys.platform == "linux":  # a huge allocation raises MemoryError; others have no such limit
        import resource

        size = int(job.memory_gb * 1e9)
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
    substitute({module: Path(file) for module, file in job.modules.items()})
    with open(job.events, "a", encoding="utf-8") as out:
        reporter = Reporter(out, job)
        reporter.guard.watch(f"{job.events}.crash")
        words = [job.test_file, "-q", "--tb=native", "--import-mode=importlib", "-c", os.devnull]
        folder = str(Path(job.test_file).parent)
        words += ["--rootdir", folder, "--confcutdir", folder]  # pytest looks at no other
        words += ["--basetemp", f"{job.events}.tmp"]  # goes with the events, nothing to clean up
        for plugin in NOT_USED:
            words += ["-p", f"no:{plugin}"]
        words += ["-x"] if job.first else []
        pytest.main(words, plugins=[reporter])


class Reporter:
    """A pytest plugin that writes each event as a line of JSON."""

    def __init__(self, out: Any, job: Job) -> None:
        self.out, self.job, self.files = out, job, list(job.modules.values())
        self.guard = Guard(self.files, self.write, job.test_s)
        self.pid, self.exit = os.getpid(), os._exit
        if hasattr(os, "register_at_fork"):  # a loop around a fork would make 2^n processes
            os.register_at_fork(after_in_child=lambda: os.register_at_fork(before=_end_here))

    def write(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")
        self.out.flush()

    @pytest.hookimpl(trylast=True)
    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", CATCHES)
        config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")
        # pytest has put its own debugger there, which finds no terminal
        sys.breakpointhook = pdb.set_trace = self._no_terminal

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.job.only:
            items[:] = [item for item in items if self.job.only in misconceptions(item)]
        if self.job.hole:
            lab = read_lab(Path(self.job.test_file).parent)
            belong = tests_of(lab, self.job.hole, [item.name for item in items])
            items[:] = [item for item in items if item.name in belong]
        if expected := self.job.expected:
            items[:] = [item for item in items if item.name in expected]
            items.sort(key=lambda item: expected[item.name].get("outcome") != "failed")
        begin, step = self.job.part
        items[:] = items[begin::step]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.write(event="collected", tests=len(session.items))

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.guard.test(nodeid.rpartition("::")[2])
        self.write(event="start", test=nodeid.rpartition("::")[2])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if os.getpid() != self.pid:
            _end_here()  # a fork that the learner's code has left running
        if report.when == "call" or (report.when == "setup" and not report.passed):
            error = call.excinfo.value if call.excinfo and not report.skipped else None
            found = {"outcome": report.outcome, **(self._explained(error) if error else {})}
            if isinstance(report.longrepr, tuple):
                found["reason"] = str(report.longrepr[-1])
            printed = report.capstdout[-PRINTED:] if error else ""
            catches = misconceptions(item)
            self.write(event="end", test=item.name, catches=catches, printed=printed, **found)
            if not same_outcome(self.job.expected.get(item.name, ANY), found):
                item.session.shouldstop = "another outcome"
            if _cpu_s() > self.job.cpu_s:
                item.session.shouldstop = "no time left"
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        """End here: what Python, pytest and PyTorch would do on their way out takes a second at
        times. A lock between processes, such as tqdm's, is given back first, or a line on the
        learner's screen would call it leaked."""
        self.write(event="over", cpu_s=_cpu_s())
        multiprocessing.util._run_finalizers()  # type: ignore[attr-defined]
        self.exit(0)

    def _explained(self, error: BaseException) -> dict[str, Any]:
        try:
            return explained(error, self.files, self.job.test_file)
        except Exception as trouble:  # a learner's own object may fail when it is looked at
            return {"error": type(error).__name__, "message": str(error)[:500], "line": "",
                    "where": "", "state": {"trouble": str(trouble)}}  # fmt: skip

    def pytest_exception_interact(
        self, call: pytest.CallInfo[Any], report: pytest.CollectReport | pytest.TestReport
    ) -> None:
        if isinstance(report, pytest.CollectReport) and call.excinfo is not None:
            self._broken(call.excinfo.value)

    def pytest_internalerror(self, excinfo: pytest.ExceptionInfo[BaseException]) -> None:
        self._broken(excinfo.value)

    def _broken(self, error: BaseException) -> None:
        """The tests could not be collected: an import failed, or ended the process."""
        found = self._explained(error.__cause__ or error)  # pytest wraps an ImportError
        message = f"{found['error']}: {found['message'] or 'no message'}"
        self.write(event="broken", message=message, where=found["where"], line=found["line"])

    def _no_terminal(self, *_: object, **__: object) -> None:
        folder = Path(self.job.test_file).parent.relative_to(ROOT)
        raise NoTerminal(f"breakpoint() needs a terminal: .venv/bin/python -m pytest {folder}")


class NoTerminal(RuntimeError):
    """A debugger was asked for where nobody can type."""


def _cpu_s() -> float:
    """Seconds that this process and those that it has waited for have computed."""
    return sum(os.times()[:4])


def _end_here() -> None:
    os.kill(os.getpid(), 9)


def misconceptions(item: pytest.Item) -> list[str]:
    """The ids of the misconceptions that a test catches."""
    return [str(id) for mark in item.iter_markers("catches") for id in mark.args]
