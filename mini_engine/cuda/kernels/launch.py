"""What every kernel file shares: how a kernel is launched, chained, and refused.

In:  the tensors of an op and its `pdl` switch. Out: launch options, or one clear error.

An op is a `torch.library.custom_op` that writes its out-parameters and returns nothing, so torch
traces and captures it without looking inside (and needs no separate fake: there is nothing to
invent). It runs its Triton kernel on a GPU, and on a CPU under Triton's interpreter
(TRITON_INTERPRET=1). On a CPU without that it computes its PyTorch reference: the same model code
runs everywhere.

**Programmatic dependent launch (PDL).** A kernel launched with it may start while the one before
it still runs. Three rules make that both fast and right:

1. `pdl_release` comes first: the next kernel's programs may take free slots at once.
2. Above `pdl_wait` a kernel reads only what no kernel of the step writes: weights and gains.
   That is the gain: the weights are on their way while the kernel before ends. What a kernel of
   the step did write is loaded past L1 (".cg"), and by that the tests know it in the machine code.
3. Everything else, and every write, comes after `pdl_wait`, and **every** kernel waits. The wait is
   for the end of the previous kernel, which itself waited: so one wait covers the whole past.

See the CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization", and PTX
ISA, `griddepcontrol`. Triton has both calls in `triton.language.extra.cuda`, but its assembly does
not say that it touches memory; ours does ("~{memory}"), so no load can be moved across it.
"""

from __future__ import annotations

from functools import cache

import torch
import triton
import triton.language as tl

from mini_engine.cuda.kernels.interpreter import INTERPRETED, install_bf16_guard

H200_SM_COUNT = 132

if INTERPRETED:
    install_bf16_guard()


@triton.jit
def pdl_release(PDL: tl.constexpr):
    """Let the next kernel's programs start as soon as there is room."""
    if PDL:
        tl.inline_asm_elementwise(
            "griddepcontrol.launch_dependents; mov.u32 $0, 0;",
            "=r,~{memory}",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Hold until the kernel before has ended and its writes can be seen."""
    if PDL:
        tl.inline_asm_elementwise(
            "griddepcontrol.wait; mov.u32 $0, 0;",
            "=r,~{memory}",
            [],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor launches its kernel; if not, it computes its reference."""
    return tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")


def launch_options(pdl: bool, tensor: torch.Tensor) -> dict[str, bool]:
    """Keyword arguments of a launch: the kernel's constant PDL, and the launch's attribute.

    Raises ValueError for `pdl` on a device that has none (it came with Hopper, sm_90).
    """
    if not pdl:
        return {"PDL": False}
    require_pdl(tensor.device)
    return {"PDL": True, "launch_pdl": True}


def require_pdl(device: torch.device) -> None:
    """Raises ValueError unless kernels on `device` can be launched with PDL."""
    if device.type != "cuda":
        raise ValueError(f"pdl=True needs a GPU of sm_90 or newer, got {device}: use pdl=False")
    major, minor = torch.cuda.get_device_capability(device)
    if major < 9:
        name = torch.cuda.get_device_name(device)
        raise ValueError(
            f"pdl=True needs a GPU of sm_90 or newer, {name} is sm_{major}{minor}: use pdl=False"
        )


@cache
def sm_count(device: torch.device) -> int:
    """Multiprocessors of a GPU; for any other device those of an H200, so that what is planned
    without a GPU (in tests, or to compile ahead of time) is the same everywhere."""
    if device.type != "cuda":
        return H200_SM_COUNT
    return torch.cuda.get_device_properties(device).multi_processor_count


def check_shape(name: str, tensor: torch.Tensor, expected: tuple[int, ...]) -> None:
    """Raises ValueError unless `tensor` has this shape and is contiguous."""
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} is {tuple(tensor.shape)}, expected {expected}")
    if not tensor.is_contiguous():
        raise ValueError(f"{name} is not contiguous: kernels address rows by width; copy it first")
