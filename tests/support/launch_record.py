"""Records the kernel launches of GPU tests on a machine without a GPU, and compiles them.

    python -m pytest --noconftest -p tests.support.launch_record --launches report.json \
        -m gpu FILES

A plugin of pytest, for a process of its own (tests/cuda/kernels/test_every_launch.py starts it).
The tests run under `pretend_gpu`: what they launch is recorded, and values come from references.
A test that only a GPU can pass fails here, which does not matter once it has launched. A module of
tests at the true size of models says `ON_META = True`: its tensors have no data, and its tests fail
at the first number that they ask for.

The report: what was recorded, what was compiled how far, and what the compiler refuses.
"""

from __future__ import annotations

import gc
import json
import os
import random
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.conftest import GPU_WORDS
from tests.support.compile_launch import each_value_once, refused
from tests.support.pretend_gpu import CPU, META, Launch, Moved, pretended

SLOW = os.environ.get("HYPOTHESIS_PROFILE") == "slow"
# A test is ended when it has called so many functions of torch without a new specialization: first
# number before its first launch, second number after it.
PATIENCE = (20_000, 100_000) if SLOW else (4_000, 4_000)
WHOLE_SAMPLE = 3  # launches that the default profile compiles to machine code, a target
ROOT = Path(__file__).parent.parent.parent
IN_SHORT = ("cuda/kernels/test_dependent_launch.py",)


class Recorder:
    """The plugin's state, and its report."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.launches: list[tuple[Launch, str]] = []  # with the test that made it first
        self.launched: set[str] = set()  # tests that launched something, new or not
        self.failed: list[str] = []
        self.test, self.idle = "", 0
        self.stack = ExitStack()
        self.moved: Moved

    def record(self, launch: Launch, *, new: bool) -> None:
        self.launched.add(self.test)
        if new:
            self.launches.append((launch, self.test))
            self.idle = 0

    def every(self) -> None:
        self.idle += 1
        if self.test and self.idle > PATIENCE[self.test in self.launched]:
            self.idle = 0
            pytest.skip("nothing new is launched any more")

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        gc.freeze()  # each capture collects garbage: it need not look at what was imported
        self.test, self.idle = item.nodeid, 0
        self.moved.where = META if getattr(item.module, "ON_META", False) else CPU  # type: ignore[attr-defined]

    def pytest_runtest_teardown(self) -> None:
        self.test, self.moved.where = "", CPU

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_unconfigure(self) -> None:
        self.stack.close()
        self.file.write_text(json.dumps(self.report(), indent=1))

    def report(self) -> dict[str, Any]:
        launches = [launch for launch, _ in self.launches]
        front = [] if SLOW else each_value_once(launches)
        on_90, on_80 = _some(launches), _some([launch for launch in launches if not launch.pdl])
        jobs = [(launch, 90, False) for launch in front]
        jobs += [(launch, 90, True) for launch in on_90]
        jobs += [(launch, 80, True) for launch in on_80]
        first = {id(launch): test for launch, test in self.launches}
        wrong = []
        for launch, capability, to_the_end in jobs:
            if reason := refused(launch, capability, whole=to_the_end):
                called = f"{launch.name} {launch.named_constants}"
                wrong.append(f"{called}: {reason} (first launched by {first[id(launch)]})")
        return {
            "recorded": len(launches),
            "front_end": len(front),
            "whole": [len(on_90), len(on_80)],
            "kernels": sorted({launch.name for launch in launches}),
            "refused": wrong,
            "failed": self.failed,
            "failed_before_a_launch": [t for t in self.failed if t not in self.launched],
            "launched": sorted(self.launched),
        }


def _some(launches: list[Launch]) -> list[Launch]:
    """Those that are compiled to machine code: all, or a sample, always the same."""
    if SLOW:
        return launches
    return random.Random(0).sample(launches, min(WHOLE_SAMPLE, len(launches)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--launches", type=Path, required=True, help="where the report goes")


def pytest_configure(config: pytest.Config) -> None:
    settings.register_profile("recording", max_examples=4, deadline=None, derandomize=True)
    settings.load_profile("recording")
    recorder = Recorder(config.getoption("--launches"))
    recorder.moved = recorder.stack.enter_context(pretended(recorder.record, recorder.every))
    config.pluginmanager.register(recorder, "launch-recorder")


# ---------------------------------------------------------------- which tests may launch anything


def files_to_record() -> list[Path]:
    """The walk through arms and labs at their true size, and test files for the GPU: all of them,
    or without `SLOW` those that have what the walk has not, other kernels and launches with PDL."""
    walk = ROOT / "tests/support/launch_walk.py"
    if not SLOW:
        return [walk, *(ROOT / "tests" / file for file in IN_SHORT)]
    files = sorted(ROOT.glob("tests/**/test_*.py"))
    return [walk, *(path for path in files if GPU_WORDS.search(path.read_text()))]
