"""What every kernel file shares: how a kernel is launched, and chained to the next one.

An op is a `torch.library.custom_op` that writes its out-parameters and returns nothing, so torch
traces and captures it without looking inside. On a GPU it runs its Triton kernel, and on a CPU too
under Triton's interpreter (TRITON_INTERPRET=1); without it its PyTorch reference. ValueError for an
output of another shape, and for `pdl` where there is none; what an op reads is not checked.

**Programmatic dependent launch (PDL).** A kernel that is launched with it may start while the
kernel before still runs. Three rules make that both fast and correct:

1. `pdl_release` comes first: the next kernel's programs may take free slots at once.
2. Above `pdl_wait` a kernel reads only what no kernel of the step writes: weights. (Attention reads
   more there, and its files say why it may.) So the weights are in flight while the kernel before
   ends. What a kernel of the step wrote is loaded past L1 (".cg").
3. Everything else, and every write, comes after `pdl_wait`, and **every** kernel waits. The wait is
   for the end of the previous kernel, which itself waited, so one wait covers the whole past.

A library's kernel between two of ours (cuBLAS, in steps of more than 4 requests) keeps that chain
whole: without the attribute it starts when the kernel before has ended, and with it, it waits.

See the CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization", and PTX
ISA, `griddepcontrol`. Triton has both calls in `triton.language.extra.cuda`, but its assembly does
not declare that it touches memory. Ours does ("~{memory}"), so no load can be moved across it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

H200_SM_COUNT = 132
INTERPRETED: bool = bool(triton.knobs.runtime.interpret)

if INTERPRETED:  # Triton 3.6 takes no run-time bound in `range` under numpy 2.4 or newer
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _with_index(tensor: Any, *scope: Any) -> None:
        _patched(tensor, *scope)
        tensor.__index__ = lambda self: int(np.asarray(self.handle.data).item())

    interpreter._patch_lang_tensor = _with_index


@triton.jit
def pdl_release(PDL: tl.constexpr):
    """Let the next kernel's programs start as soon as there is room."""
    if PDL:
        grid_control("griddepcontrol.launch_dependents; mov.u32 $0, 0;")


@triton.jit
def pdl_wait(PDL: tl.constexpr):
    """Wait until the kernel before has ended and its writes are visible."""
    if PDL:
        grid_control("griddepcontrol.wait; mov.u32 $0, 0;")


@triton.jit
def grid_control(ASM: tl.constexpr):
    tl.inline_asm_elementwise(ASM, "=r,~{memory}", [], dtype=tl.int32, is_pure=False, pack=1)


def runs_triton(tensor: torch.Tensor) -> bool:
    """Whether an op on this tensor launches its kernel; otherwise it computes its reference."""
    return tensor.is_cuda or (INTERPRETED and tensor.device.type == "cpu")


def why_no_pdl(device: torch.device) -> str | None:
    """Why a device has no programmatic dependent launch, in one line; None where it has."""
    if device.type != "cuda":
        return f"programmatic dependent launch needs a GPU of sm_90 or newer, not {device}"
    if (have := torch.cuda.get_device_capability(device)) < (9, 0):
        return f"sm_{have[0]}{have[1]} has no programmatic dependent launch: it came with sm_90"
    return None


def launch_options(pdl: bool, device: torch.device) -> dict[str, bool]:
    """Keyword arguments of a launch: the kernel's constant PDL, and the launch's attribute. Raises
    ValueError for `pdl` on a device that has none."""
    if not pdl:
        return {"PDL": False}
    if reason := why_no_pdl(device):
        raise ValueError(f"{reason}: use pdl=False")
    return {"PDL": True, "launch_pdl": True}


@cache
def sm_count(device: torch.device) -> int:
    """How many multiprocessors a GPU has. Any other device counts as an H200, or as what the
    environment says in MINI_ENGINE_SM_COUNT: with 1 the interpreter has few programs to run."""
    if device.type != "cuda":
        return int(os.environ.get("MINI_ENGINE_SM_COUNT", H200_SM_COUNT))
    return torch.cuda.get_device_properties(device).multi_processor_count
