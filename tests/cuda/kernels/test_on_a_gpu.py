"""The compiled kernels against their references, on a GPU; and clean under NVIDIA's memcheck."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton", reason="Triton has no wheel for this platform")
if os.environ.get("TRITON_INTERPRET") == "1":
    pytest.skip("the interpreter is on in this process", allow_module_level=True)

from tests.support import gpu_cases  # noqa: E402

no_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no NVIDIA GPU")
SANITIZER = shutil.which("compute-sanitizer")


@pytest.mark.gpu
@no_gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("case", gpu_cases.CASES, ids=lambda case: case.__name__)
@torch.inference_mode()
def test_every_kernel_agrees_with_its_reference(
    case: Callable[[gpu_cases.Make], list[torch.Tensor]], dtype: torch.dtype
) -> None:
    gpu_cases.check(case, "cuda", dtype)


@pytest.mark.gpu_slow
@no_gpu
@pytest.mark.skipif(SANITIZER is None, reason="no compute-sanitizer: install the CUDA toolkit")
def test_every_kernel_is_clean_under_memcheck() -> None:
    """Without PyTorch's allocator a byte beyond a tensor is a byte beyond an allocation. Failing
    calls of the CUDA API are left out: PyTorch asks for functions that a driver may not have."""
    words = [str(SANITIZER), "--tool", "memcheck", "--error-exitcode", "9"]
    words += ["--report-api-errors", "no", "--target-processes", "application-only"]
    words += [sys.executable, "-m", "pytest", "-q", __file__, "-k", "agrees_with_its_reference"]
    env = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1"}
    done = subprocess.run(words, env=env, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stdout[-6000:]
    assert "18 passed" in done.stdout
