"""The kernels under NVIDIA's compute-sanitizer, where there is one; and its cases by themselves."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from tests.support import sanitizer_cases  # noqa: E402
from tests.support.kernel_cases import interpreting_environment  # noqa: E402

ROOT = Path(__file__).parent.parent.parent.parent


def test_the_cases_for_the_sanitizer_agree_in_the_interpreter() -> None:
    words = [sys.executable, "-m", "tests.support.sanitizer_cases", "--device", "cpu"]
    done = subprocess.run(
        words, cwd=ROOT, env=interpreting_environment(), capture_output=True, text=True, timeout=300
    )
    assert done.stdout == "9 cases agree with their references\n", done.stderr[-2000:]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", sanitizer_cases.CASES, ids=lambda case: case.__name__)
@torch.inference_mode()
def test_on_a_gpu_every_kernel_agrees_with_its_reference(
    case: Callable[[sanitizer_cases.Make], list[torch.Tensor]], dtype: torch.dtype
) -> None:
    """The first thing to know of a GPU: the compiled kernels compute what the interpreted ones do,
    unwatched, in seconds."""
    sanitizer_cases.check(case, "cuda", dtype)


@pytest.mark.gpu_slow
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
def test_every_kernel_is_clean_under_memcheck() -> None:
    sanitizer = sanitizer_cases.find_sanitizer()
    if sanitizer is None:
        pytest.skip(sanitizer_cases.INSTALL)

    def watched(*more: str) -> subprocess.CompletedProcess[str]:
        words = [*sanitizer_cases.under(sanitizer), "-m", "tests.support.sanitizer_cases", *more]
        env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
        return subprocess.run(words, cwd=ROOT, env=env, capture_output=True, text=True, timeout=500)

    done = watched("--overrun")  # a sanitizer that sees nothing proves nothing
    assert done.returncode == sanitizer_cases.CRIED, done.stdout[-3000:]
    assert "Invalid __global__ read" in done.stdout
    done = watched()
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "18 cases agree with their references" in done.stdout
    assert "ERROR SUMMARY: 0 errors" in done.stdout
