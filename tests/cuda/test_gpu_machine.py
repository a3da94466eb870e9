"""A machine with a GPU, no network, and a Python of its own: nothing is downloaded, and all starts.

There is no such machine here. Its Python is an environment that sees the packages of such a machine
and no others (`tests/support/gpu_machine.py`); its GPU is a torch that says there is one.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")
pytest.importorskip("transformers")

from tests.support.gpu_machine import packages_only, stub  # noqa: E402

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
    for name in ("Makefile", "make_venv.py", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    (tmp_path / "mini_engine").symlink_to(ROOT / "mini_engine")
    stub(tmp_path / "stubs", "pip", PIP)
    return tmp_path


def make(tree: Path, target: str, python: Path, torch_says: str, **more: str) -> tuple[int, str]:
    """Exit status of `make target PYTHON=python` and all that it said."""
    stub(tree / "stubs", "torch", torch_says)
    words = "make", target, f"PYTHON={python}"
    done = run(*words, cwd=tree, PYTHONPATH=str(tree / "stubs"), **more)
    return done.returncode, done.stdout + done.stderr


def pip_was_called(tree: Path) -> bool:
    return (tree / "stubs/pip/called").exists()


def test_where_torch_sees_a_gpu_its_python_is_borrowed_and_nothing_downloaded(
    tree: Path, python: Path
) -> None:
    code, told = make(tree, ".venv/.gpu", python, SEES)
    assert code == 0, told
    assert f".venv borrows the packages of {python}, whose torch sees NVIDIA H200\n" == told
    assert not pip_was_called(tree)
    program = "import numpy, pytest, triton, os; print(numpy.__file__)"
    done = run(tree / ".venv/bin/python", "-c", program, cwd=tree.parent)
    assert done.stdout.startswith(str(python.parent.parent)), done.stderr
    (tree / "anywhere.py").touch()  # the repository is importable from anywhere, as after pip -e
    assert run(tree / ".venv/bin/python", "-c", "import anywhere", cwd=tree.parent).returncode == 0

    code, told = make(tree, ".venv/.test", python, SEES)
    assert code == 2
    assert re.search(r"make test needs nbclient, .*sphinx, .*playwright", told)
    assert f"which {python} lacks and pip could not download" in told


def test_a_package_that_is_missing_is_named_in_one_line(tree: Path, python: Path) -> None:
    stub(tree / "stubs", "tokenizers", "raise ImportError('no such wheel')")
    code, told = make(tree, ".venv/.core", python, SEES)
    assert code == 2
    assert f"{python}, whose packages .venv borrows, lacks tokenizers: install them there" in told
    assert not (tree / ".venv/.core").exists()
    assert not pip_was_called(tree)


def test_a_venv_from_an_earlier_download_stays_what_it_is(tree: Path, python: Path) -> None:
    assert run(python, "-m", "venv", "--without-pip", tree / ".venv").returncode == 0
    (tree / ".venv/.core").touch()
    before = (tree / ".venv/pyvenv.cfg").read_bytes()
    seen_by_python_alone = f"import sys\n{SEES}".replace(
        "lambda: True", "lambda: '.venv' not in sys.prefix"
    )
    code, told = make(tree, ".venv/.gpu", python, seen_by_python_alone)
    assert code == 2
    assert "no torch in .venv, which was made by download, sees a GPU, but" in told
    assert f"make clean, then make gpu PYTHON={python}; or make gpu BORROW=no" in told
    assert not pip_was_called(tree)
    for words in ((BLIND, {}), (SEES, {"BORROW": "no"})):
        code, told = make(tree, ".venv/.gpu", python, words[0], **words[1])
        assert code == 2
        assert (
            "pip could not download what make gpu needs; without a network, name a Python" in told
        )
        assert pip_was_called(tree)
    assert (tree / ".venv/pyvenv.cfg").read_bytes() == before


def test_where_no_venv_can_be_made_one_line_says_what_to_install(tree: Path, python: Path) -> None:
    stub(tree / "stubs", "venv", "raise ImportError('No module named ensurepip')")
    for torch_says in (SEES, BLIND):
        code, told = make(tree, ".venv/.core", python, torch_says)
        assert code == 2
        assert re.search(r"cannot make a \.venv \(.*ensurepip.*\): on Debian or Ubuntu apt", told)
