"""What runs in the interpreter compiles for a GPU: every launch of arms, labs and cases for a GPU.

Triton's interpreter allows what its compiler refuses (a product over eight numbers, say), so each
kernel could pass all tests here and fail in the first minute on a GPU. So `launch_walk.py` runs
all arms of the benchmark on a GPU that is not there, and the compiler is asked for what they
launch. No list of kernels or shapes is kept: a new arm is found by itself.

As many launches are turned into Triton's IR, where these refusals come from, as are needed for each
kernel to meet each value of each constant and each type once, and a few into machine code for sm_90
and sm_80. `HYPOTHESIS_PROFILE=slow`: all of them into machine code, for both (without PDL for
sm_80, which has none). Triton's cache on disk plays no part in it.
"""

from __future__ import annotations

import importlib
import json
import os
import pkgutil
import subprocess

import pytest

pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

import triton
import triton.language as tl

from mini_engine.cuda import kernels
from tests.support.compile_launch import each_value_once, refused
from tests.support.documents import ROOT
from tests.support.pretend_gpu import Launch
from tests.support.warm_python import warm_python


def test_the_compiler_takes_whatever_a_gpu_would_be_asked_to_run() -> None:
    words = [warm_python(), "-m", "tests.support.launch_walk"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout)
    assert not found["refused"], "\n".join(found["refused"])
    assert written_kernels() <= set(found["kernels"])


def written_kernels() -> set[str]:
    written = set()
    for info in pkgutil.iter_modules(kernels.__path__):
        module = importlib.import_module(f"{kernels.__name__}.{info.name}")
        written |= {
            f"{module.__name__}.{name}"
            for name, value in vars(module).items()
            if name.endswith("_kernel") and getattr(value, "__module__", "") == module.__name__
        }
    assert len(written) >= 12
    return written


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
