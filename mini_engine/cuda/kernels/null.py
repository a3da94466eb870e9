"""A kernel that does next to nothing: what is left of a launch when there is no work in it.

    count:  cell += 1

In, out: cell (1,) int32, so a chain of them also counts itself: after n launches it holds n more.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton


@triton.jit
def count_kernel(cell, PDL: tl.constexpr):
    """One program."""
    pdl_release(PDL)
    pdl_wait(PDL)
    tl.store(cell, tl.load(cell, cache_modifier=".cg") + 1)


@torch.library.custom_op("launch_bound::count", mutates_args=("cell",))
def count(cell: Tensor, pdl: bool = False) -> None:
    """cell (1,) int32 += 1."""
    check_shape("cell", cell, (1,))
    if not runs_triton(cell):
        cell.add_(1)
        return
    count_kernel[(1,)](cell, num_warps=1, **launch_options(pdl, cell.device))
