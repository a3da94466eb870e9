"""tests/conftest.py: runs for the GPU are collected, ordered, limited and summed up as it says.

Each test runs pytest on a few files of its own, with that conftest as a plugin.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
ENDLESS = """
import time, pytest
from hypothesis import given, strategies as st
from tests import conftest

conftest.LIMIT_S["gpu"] = 1

@pytest.mark.gpu
@given(st.integers())
def test_endless(number):
    time.sleep(30)

@pytest.mark.gpu
def test_the_next_one(): pass
"""

BROKEN = """
import sys, types, pytest

def synchronize():
    raise RuntimeError("CUDA error: illegal address\\nSearch for it")

torch = types.ModuleType("torch")
torch.cuda = types.SimpleNamespace(is_initialized=lambda: True, synchronize=synchronize)
sys.modules["torch"] = torch

@pytest.mark.gpu
def test_before(): pass

@pytest.mark.gpu
def test_breaks(): raise RuntimeError("a kernel")

@pytest.mark.gpu
def test_behind(): pass
"""


def pytest_on(folder: Path, files: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    for name, source in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(source, "utf-8")
    (folder / "pytest.ini").write_text(
        "[pytest]\nmarkers =\n  gpu: one\n  gpu_slow: two\n", "utf-8"
    )
    command = (sys.executable, "-m", "pytest", "-p", "tests.conftest", "-p", "no:cacheprovider")
    env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    env["PYTEST_PLUGINS"] = "_hypothesis_pytestplugin"
    return subprocess.run(
        [*command, "--strict-markers", *words, str(folder)],
        cwd=folder, env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


def test_a_run_for_the_gpu_comes_in_the_order_of_what_it_teaches_and_imports_nothing_else(
    tmp_path: Path,
) -> None:
    one = "import pytest\n@pytest.mark.gpu\ndef test_it(): pass\n"
    places = ("test_reliability", "test_model", "kernels/test_norm", "graphs/test_graph_contract")
    files = {f"tests/cuda/{place}.py": one for place in places}
    files["tests/course/test_site.py"] = "import no_such_package\ndef test_it(): pass\n"
    chosen = pytest_on(tmp_path, files, "-v", "-m", "gpu", "--rootdir", str(tmp_path))
    assert chosen.returncode == 0, chosen.stdout
    told = [line.split("::")[0] for line in chosen.stdout.splitlines() if "PASSED" in line]
    assert told == [f"tests/cuda/{place}.py" for place in reversed(places)]
    everything = pytest_on(tmp_path, files)
    assert everything.returncode == 2, "a missing package is an error where all tests are wanted"
    assert "no_such_package" in everything.stdout


def test_a_gpu_test_that_does_not_end_is_ended_and_the_next_one_runs(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, {"test_long.py": ENDLESS}, "-m", "gpu")
    assert "StillRunning: not done after 1 s" in done.stdout
    assert "1 failed, 1 passed" in done.stdout


def test_after_an_illegal_address_no_test_fails_for_that_reason_alone(tmp_path: Path) -> None:
    done = pytest_on(tmp_path, {"test_broken.py": BROKEN}, "-m", "gpu")
    assert "test_breaks leaves nothing to run on: CUDA error: illegal address" in done.stdout
    assert "1 failed, 1 passed" in done.stdout, "the one before it, and not the one behind it"
