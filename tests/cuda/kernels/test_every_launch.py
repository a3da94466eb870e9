"""What runs in the interpreter compiles for a GPU: every launch of GPU tests, arms and labs.

Triton's interpreter allows what its compiler refuses (a product over eight numbers, say), so each
kernel could pass all tests here and fail in the first minute on a GPU. So GPU tests, all arms of
the benchmark, labs and the sanitizer's cases run on a GPU that is not there
(`tests/support/pretend_gpu.py`), and the compiler is asked for what they launch. No list of kernels
or shapes is kept: a new arm, test or kernel is found by itself.

The default profile takes the arms, the labs and the sanitizer's cases, and of the tests those with
kernels of their own. It turns as many launches into Triton's IR, where these refusals come from, as
are needed for each kernel to meet each value of each constant and each type once, and a few into
machine code for sm_90 and sm_80. `HYPOTHESIS_PROFILE=slow`: all of them into machine code, for both
(without PDL for sm_80, which has none). Triton's cache on disk plays no part in it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess
from typing import Any

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

import triton
import triton.language as tl

from mini_engine.cuda import kernels
from tests.support.compile_launch import each_value_once, refused
from tests.support.launch_record import ROOT, SLOW, files_to_record
from tests.support.pretend_gpu import Launch
from tests.support.warm_python import warm_python


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Of a process that records and compiles."""
    file = tmp_path_factory.mktemp("launches") / "report.json"
    words = ["--noconftest", "-p", "tests.support.launch_record", "-p", "no:cacheprovider"]
    words += ["--launches", str(file), "-m", "gpu", "-q", "--tb=short", "--assert=plain"]
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PYTEST", "COV"))}
    done = subprocess.run(
        [warm_python(), "-m", "pytest", *words, *map(str, files_to_record())],
        cwd=ROOT, env={**kept, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True,
        timeout=3600 if SLOW else 900,
    )  # fmt: skip
    assert file.exists(), done.stdout[-3000:] + done.stderr[-2000:]
    found: dict[str, Any] = json.loads(file.read_text())
    on_90, on_80 = found["whole"]
    print(
        f"{found['recorded']} specializations of {len(found['kernels'])} kernels in "
        f"{len(found['launched'])} tests and walks; {found['front_end']} turned into Triton's IR, "
        f"{on_90} into machine code for sm_90 and {on_80} for sm_80"
    )
    return found


def test_the_compiler_takes_whatever_a_gpu_would_be_asked_to_run(report: dict[str, Any]) -> None:
    assert not report["refused"], "\n".join(report["refused"])


def test_nothing_stood_in_the_way_of_a_launch(report: dict[str, Any]) -> None:
    """A test may fail for want of a GPU, but only after its launches; a walk may not fail."""
    assert not report["failed_before_a_launch"]
    assert not [test for test in report["failed"] if "launch_walk" in test]


def test_no_kernel_was_missed(report: dict[str, Any]) -> None:
    written = set()
    for info in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{info.name}")
        written |= {
            f"{module.__name__}.{name}"
            for name, value in vars(module).items()
            if name.endswith("_kernel") and getattr(value, "__module__", "") == module.__name__
        }
    assert written <= set(report["kernels"])
    assert len(written) >= 15


# ---------------------------------------------------------------- the compiler's part, by itself


@triton.jit
def product_kernel(out, x, terms: tl.constexpr, columns: tl.constexpr):
    row, term, column = tl.arange(0, 16), tl.arange(0, terms), tl.arange(0, columns)
    tile = tl.load(x + row[:, None] * terms + term[None, :])
    tl.store(out + row[:, None] * 16 + column[None, :], tl.dot(tile, tl.trans(tile)))


def product(terms: int, columns: int = 16, kind: str = "*bf16") -> Launch:
    signature = {"out": "*fp32", "x": kind, "terms": "constexpr", "columns": "constexpr"}
    constants = {(2,): terms, (3,): columns}
    return Launch(product_kernel, signature, constants, {}, num_warps=4, num_stages=3)


def test_what_only_the_interpreter_allows_is_refused_in_words() -> None:
    for capability in (80, 90):
        assert refused(product(16), capability, whole=True) is None
        assert "K >= 16" in (refused(product(8), capability, whole=True) or "")
    assert "K >= 16" in (refused(product(8), 90, whole=False) or "")
    assert "power of 2" in (refused(product(16, 12), 90, whole=False) or "")


def test_of_many_launches_those_are_kept_that_bring_a_new_value_or_type() -> None:
    launches = [product(16), product(32), product(32, 32), product(16, 32)]
    assert each_value_once(launches) == launches[:3]
    assert each_value_once([product(1024), product(2048), product(1000)]) == [
        product(1024), product(1000)
    ]  # fmt: skip
    wider = product(16, kind="*fp32")
    assert each_value_once([*launches, wider]) == [*launches[:3], wider]
