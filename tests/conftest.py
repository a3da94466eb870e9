"""Hypothesis profiles; how a run is spread over workers; and runs for the GPU (`-m gpu`): what is
collected, in which order, for how long at most, and the word on them at the end."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# As in the Makefile. Two workers with as many threads as there are cores wait for each other: the
# suite takes twice as long then. Before anything imports torch, and so for every worker.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Tests are collected without it: that imports thousands of modules, of which nothing can be thrown
# away, and to look through them again and again takes a third of the time.
gc.disable()

# Hundreds of processes begin here. Where Python may not keep what it compiled, each compiles all of
# the project anew.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What a script starts in the background (`&`) ignores SIGINT, and so does all that it starts in its
# turn, such as a server which a test ends by Ctrl-C.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

for _name, _examples in (("default", 25), ("slow", 1000)):
    settings.register_profile(
        _name,
        max_examples=_examples,
        deadline=None,  # a shared machine is slow at times, and no test times anything
        derandomize=_name == "default",  # the same examples every time: a red run can be repeated
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "default"))


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


_frozen: tuple[str, int] = "", 0  # at the last freeze: the file, and how many modules there were


@pytest.fixture(autouse=True)
def small_heap(request: pytest.FixtureRequest) -> None:
    """What lives when the tests of a file begin, or was imported since, is set aside for the
    garbage collector: each of the many captures collects garbage first, and need not look through
    all of PyTorch for it."""
    global _frozen
    file, modules = str(request.path), len(sys.modules)
    if file != _frozen[0] or modules > _frozen[1] + 50:
        gc.collect()
        gc.freeze()
        _frozen = file, modules


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Ours, where `--dist loadgroup` asks for groups."""
    from tests.support.distribution import TestByTest

    return TestByTest(config, log) if config.getvalue("dist") == "loadgroup" else None


# What a run for the GPU teaches, the most first: one that is cut short has shown that much. Files
# that are not named here come after these, in their usual order.
LESSONS = (
    # real graphs do what the emulator has been doing: seconds, and nothing to compile
    "cuda/graphs/test_graph_contract.py",
    "cuda/kernels/",  # each kernel against its reference: all that follows stands on them
    "cuda/test_fused.py",  # and wired into a step, in graphs
    "cuda/test_attention.py",
    "cuda/test_model.py",
    "bench/test_bench.py",  # the arms that are measured compute the same
    "bench/",
    "cuda/test_runner.py",
)
LIMIT_S = {"gpu": 60, "gpu_slow": 600}  # of one test; kernels are compiled in the first that runs
HOW_TO = "make gpu, or python -m pytest -m gpu"
GPU_WORDS = re.compile(r"mark\.gpu|DEVICES")  # a file with a test for the GPU says one of them


def for_gpu(config: pytest.Config) -> bool:
    """Whether the run asks for GPU tests alone: -m gpu, -m "gpu and not gpu_slow", -m gpu_slow."""
    return re.match(r"\(*gpu", config.option.markexpr.strip()) is not None


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """A run for the GPU imports no file that has nothing for it: a GPU machine lacks packages that
    tests of the book and of notebooks import. Any other run imports them all, or fails."""
    file = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    if file and for_gpu(config) and not GPU_WORDS.search(collection_path.read_text("utf-8")):
        return True
    return None


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("gpu_slow"):
            item.add_marker("gpu")
        if item.get_closest_marker("gpu") and not GPU_WORDS.search(item.path.read_text("utf-8")):
            raise pytest.UsageError(f"{item.nodeid} is marked gpu, and nothing in its file says so")
    if os.environ.get("HYPOTHESIS_PROFILE") != "slow":
        items[:] = [item for item in items if not item.get_closest_marker("slow")]
    if for_gpu(config):
        items.sort(key=lesson)
    elif hasattr(config, "workerinput"):  # of pytest-xdist
        from tests.support.distribution import place_of

        items.sort(key=lambda item: place_of(item.nodeid))


def lesson(item: pytest.Item) -> int:
    """The place of a test in LESSONS."""
    place = item.nodeid.partition("tests/")[2]
    return next((i for i, way in enumerate(LESSONS) if place.startswith(way)), len(LESSONS))


class StillRunning(BaseException):
    """No Exception: hypothesis would take it for a failing example and look for a smaller one."""


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """A test on the GPU ends, come what may: the next one is waiting for the same machine.

    SIGALRM reaches Python between two lines; what never comes back from the driver is for the
    deadline of whoever has started pytest.
    """
    slow = item.get_closest_marker("gpu_slow")
    seconds = LIMIT_S["gpu_slow" if slow else "gpu"]
    if not item.get_closest_marker("gpu"):
        return (yield)

    def stop(_number: int, _frame: FrameType | None) -> None:
        raise StillRunning(f"not done after {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        return (yield)
    except BaseException:
        if error := sticky_error():
            item.session.shouldstop = f"{item.nodeid} leaves nothing to run on: {error}"
        raise
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def sticky_error() -> str | None:
    """What CUDA says to everything from now on, after an illegal address for example: no test that
    follows in this process could pass. None where the device goes on."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        return None if "captur" in line else line  # a capture that is open is no harm to the device
    return None


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Which GPU checks were skipped, and how to run them."""

    def checks(outcome: str) -> list[pytest.TestReport]:
        reports = terminalreporter.stats.get(outcome, [])
        # a module that skips itself leaves a report of its collection, which has no keywords
        return [r for r in reports if "gpu" in getattr(r, "keywords", ())]

    if skipped := checks("skipped"):
        files = Counter(report.nodeid.partition("::")[0] for report in skipped)
        terminalreporter.write_line(f"GPU checks skipped, no NVIDIA GPU here ({len(skipped)}):")
        for file, count in sorted(files.items()):
            terminalreporter.write_line(f"  {file}: {count}")
        terminalreporter.write_line(f"Run them on a machine with a GPU: {HOW_TO}")
    elif not (checks("passed") or checks("failed")):
        terminalreporter.write_line("GPU checks: none among these tests")
