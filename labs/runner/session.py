"""One run of a lab's tests in a process of its own, reported event by event.

In:  the test file, the files that stand in for the engine's modules, limits. Out: lines of JSON,
written at once, so that the waiting process knows which test was running when time ran out.

    {"event": "start", "test": "test_replay_ignores_a_rebound_input"}
    {"event": "end", "test": "…", "outcome": "failed", "todo": "", "catches": ["rebind-input"], …}
    {"event": "broken", "message": "…"}           the tests could not even be collected

The process serves this run alone: it substitutes modules, limits its memory and may be killed.
"""

from __future__ import annotations

import json
import os
import re
import sys
import traceback
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from labs.runner.catalogue import ROOT
from labs.runner.cutter import TODO
from labs.runner.substitute import substitute

CATCHES = "catches(*ids): a test that fails if the code holds one of these misconceptions"


@dataclass(frozen=True)
class Job:
    """What to run. `only` keeps the tests that catch this misconception; `first` ends with the
    first test that fails."""

    test_file: str
    modules: dict[str, str]  # module -> file
    events: str  # file to write
    memory_gb: float = 4
    environment: dict[str, str] = field(default_factory=dict)
    only: str = ""
    first: bool = False


def run_job(job: Job) -> None:
    """Run pytest on the job. Returns when pytest is done, whatever the tests did."""
    os.environ.update(job.environment)
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"  # slow to load, and none is used
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(ROOT))
    limit_memory(job.memory_gb)
    substitute({module: Path(file) for module, file in job.modules.items()})
    with open(job.events, "a", encoding="utf-8") as out:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # drops what pytest and the learner print
        os.dup2(1, 2)
        reporter = Reporter(out, job.only, list(job.modules.values()))
        words = [job.test_file, "-q", "--tb=native", "--import-mode=importlib"]
        words += [
            "-p",
            "no:cacheprovider",
            "-p",
            "no:unraisableexception",
        ]  # this one collects garbage after each test
        words += ["-x"] if job.first else []
        code = pytest.main([*words, "--rootdir", str(ROOT), "-c", os.devnull], plugins=[reporter])
        reporter.write(event="over", code=int(code))


def limit_memory(gigabytes: float) -> None:
    """Limit the address space of this process, so that a huge allocation raises MemoryError.

    Does nothing on systems without such a limit (Windows, macOS).
    """
    if sys.platform != "linux":
        return
    import resource

    size = int(gigabytes * 1e9)
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


class Reporter:
    """A pytest plugin that writes each event as a line of JSON."""

    def __init__(self, out: Any, only: str = "", files: list[str] | None = None) -> None:
        self.out, self.only, self.files = out, only, files or []

    def write(self, **event: Any) -> None:
        self.out.write(json.dumps(event) + "\n")
        self.out.flush()

    def pytest_configure(self, config: pytest.Config) -> None:
        config.addinivalue_line("markers", CATCHES)
        config.addinivalue_line("markers", "gpu: needs an NVIDIA GPU")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self.only:
            items[:] = [item for item in items if self.only in misconceptions(item)]

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.write(event="start", test=nodeid.rpartition("::")[2])

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if report.when == "call" or (report.when == "setup" and not report.passed):
            error = call.excinfo.value if call.excinfo and not report.skipped else None
            self.write(
                event="end",
                test=item.name,
                outcome=report.outcome,
                catches=misconceptions(item),
                **(explained(error, self.files) if error else {}),
                **(
                    {"reason": str(report.longrepr[-1])}
                    if isinstance(report.longrepr, tuple)
                    else {}
                ),
            )
        return report

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            lines = str(report.longrepr).strip().splitlines()
            last = [line.removeprefix("E").strip() for line in lines if line.startswith("E")]
            message = (last or lines)[-1]
            self.write(event="broken", message=message, detail=str(report.longrepr))


def misconceptions(item: pytest.Item) -> list[str]:
    """The ids of the misconceptions that a test catches."""
    return [str(id) for mark in item.iter_markers("catches") for id in mark.args]


def explained(error: BaseException, files: list[str]) -> dict[str, str]:
    """An error in a few words: its TODO if it is one, its message, and where it was raised.

    Follows errors back to those they were raised from, because Triton's interpreter wraps them.
    """
    chain: list[BaseException] = []
    link: BaseException | None = error
    while link is not None and link not in chain:
        chain.append(link)
        link = link.__cause__ or link.__context__
    unwritten = [e for e in chain if isinstance(e, NotImplementedError)]
    todo = next((m for m in (TODO.search(str(e)) for e in (*unwritten, *chain)) if m), None)
    frames = [frame for e in chain for frame in traceback.extract_tb(e.__traceback__)]
    mine = [f for f in frames if any(_same(f.filename, file) for file in files)]
    test = [f for f in frames if f.filename.endswith("test_lab.py")]
    place = mine[-1] if mine else (test or frames)[-1]
    said = str(error).strip() or "no message"
    asserted = test[-1].line if test and isinstance(error, AssertionError) else ""
    return {
        "todo": todo[0] if todo else "",
        "message": f"{type(error).__name__}: {said}",
        "asserted": asserted or "",
        "where": f"{place.filename}:{place.lineno}",
    }


def _same(one: str, other: str) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def sentence(test: str) -> str:
    """The name of a test as words: `test_a_b[3]` becomes `a b (3)`."""
    name, bracket, case = test.partition("[")
    words = re.sub(r"_+", " ", name.removeprefix("test_"))
    return f"{words} ({case.rstrip(']')})" if bracket else words
