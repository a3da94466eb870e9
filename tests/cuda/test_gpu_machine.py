"""A machine with a GPU, no network, and a Python of its own: nothing is downloaded, and all starts.

There is no such machine here. Its Python is an environment that sees the packages of such a machine
and no others (`tests/support/gpu_machine.py`); its GPU is a torch that says there is one.
"""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.support.gpu_machine import packages_only, stub

ROOT = Path(__file__).parent.parent.parent
SEES = """
__version__ = "2.11.0"
class cuda:
    is_available = staticmethod(lambda: True)
    get_device_name = staticmethod(lambda: "NVIDIA H200")
"""
# What `make test` leaves in the environment of a make that it runs: its options, that it is nested.
CALLERS = ("PYTHONPATH", "MAKEFLAGS", "MFLAGS", "MAKELEVEL", "PYTHON")
BLIND = SEES.replace("True", "False")
# A pip that tells that it was called, and that there is no network.
PIP = "import pathlib, sys; pathlib.Path(__file__).with_name('called').touch(); sys.exit(1)"


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The machine's Python: itself a virtual environment, the harder case."""
    if lacking := [name for name in ("torch", "triton", "transformers") if not find_spec(name)]:
        pytest.skip(f"not installed: {', '.join(lacking)}")
    return packages_only(tmp_path_factory.mktemp("machine"))


def run(*words: str | Path, cwd: Path = ROOT, **more: str) -> subprocess.CompletedProcess[str]:
    env = {k: v for k, v in os.environ.items() if k not in CALLERS}
    return subprocess.run(
        words, cwd=cwd, env=env | more, capture_output=True, text=True, timeout=120
    )


def marks(path: Path) -> bool:
    """Whether the code of a file (not its strings) marks tests for the GPU."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Attribute) and node.attr in ("gpu", "gpu_slow"):
            if isinstance(node.value, ast.Attribute) and node.value.attr == "mark":
                return True
        elif isinstance(node, ast.Name) and node.id in ("DEVICES", "SLOW_DEVICES"):
            return True
    return False


def test_every_gpu_test_is_collected_without_the_packages_of_the_book(python: Path) -> None:
    assert run(python, "-c", "import sphinx").returncode == 1
    assert run(python, "-c", "import xdist").returncode == 1
    words = "-m pytest -m gpu --collect-only -p no:cacheprovider --assert=plain"
    done = run(python, *words.split())
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr
    collected = {line.partition("::")[0] for line in done.stdout.splitlines() if "::" in line}
    # A file of which the missing packages leave nothing but a skip would not be among these.
    wanted = {p.relative_to(ROOT).as_posix() for p in ROOT.glob("tests/**/test_*.py") if marks(p)}
    assert collected == wanted
    assert len(wanted) > 10


def test_the_first_commands_start_with_these_packages_alone(python: Path) -> None:
    for words in (
        "mini_engine --help",
        "mini_engine bench --help",
        "mini_engine calibrate --help",
        "labs list",
    ):
        done = run(python, "-m", *words.split())
        assert done.returncode == 0, f"{words}: {done.stderr[-1000:]}"
        assert done.stdout


# ---------------------------------------------------------------- make


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """As much of the repository as making a .venv reads, and a pip without a network."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    stub(tmp_path / "stubs", "pip", PIP)
    return tmp_path


def make(tree: Path, target: str, python: Path, torch_says: str) -> tuple[int, str]:
    """Exit status of `make target PYTHON=python` and all that it said."""
    stub(tree / "stubs", "torch", torch_says)
    done = run("make", target, f"PYTHON={python}", cwd=tree, PYTHONPATH=str(tree / "stubs"))
    return done.returncode, done.stdout + done.stderr


def pip_was_called(tree: Path) -> bool:
    return (tree / "stubs/pip/called").exists()


def test_where_torch_sees_a_gpu_its_python_is_borrowed_and_nothing_downloaded(
    tree: Path, python: Path
) -> None:
    code, told = make(tree, ".venv/.core", python, SEES)
    assert code == 0, told
    assert not pip_was_called(tree)
    program = "import numpy, pytest, triton, os; print(numpy.__file__)"
    done = run(tree / ".venv/bin/python", "-c", program, cwd=tree.parent)
    assert done.stdout.startswith(str(python.parent.parent)), done.stderr


def test_a_package_that_is_missing_is_named(tree: Path, python: Path) -> None:
    site = run(python, "-c", "import tokenizers; print(tokenizers.__path__[0])").stdout.strip()
    hidden = Path(site).with_name("hidden")
    Path(site).rename(hidden)
    try:
        code, told = make(tree, ".venv/.core", python, SEES)
    finally:
        hidden.rename(site)
    assert code == 2
    assert "lacks ['tokenizers']" in told
    assert not (tree / ".venv/.core").exists()
    assert not pip_was_called(tree)


def test_without_a_gpu_make_gpu_is_one_line_and_downloads_nothing(tree: Path, python: Path) -> None:
    assert make(tree, "gpu", python, BLIND)[0] == 2
    assert not (tree / ".venv").exists()
    assert run(python, "-m", "venv", "--without-pip", tree / ".venv").returncode == 0
    code, told = make(tree, "gpu", python, BLIND)
    assert code == 2, "nor with a .venv that was made by download"
    (line,) = (line for line in told.splitlines() if not line.startswith("make: ***"))
    assert "--device cpu" in line
    assert not pip_was_called(tree)
