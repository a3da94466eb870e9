"""Every kernel against its reference, in Triton's interpreter: a process of their own, which begins
early, since most of its time is its start (tests/support/distribution.py)."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")

from tests.support.kernel_cases import interpreting_environment

HERE = Path(__file__).parent
FILES = sorted((HERE / "interpreted").glob("test_*.py"))


def test_there_is_something_to_run() -> None:
    assert len(FILES) >= 5


def test_kernels_equal_their_references_in_the_interpreter() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, FILES)],
        cwd=HERE.parent,
        env=interpreting_environment(),
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, f"\n{done.stdout[-6000:]}\n{done.stderr[-2000:]}"
