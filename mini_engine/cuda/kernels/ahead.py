"""Reading ahead: while one kernel computes, weights of the next ones come from memory into L2.

In:  a tensor that nothing in the step writes, and how many of its bytes. Out: nothing; where there
     is no L2, in the interpreter and in the references, nothing happens, so results are the same.

A kernel of the step loads its own weights above its wait. From then on it waits, computes and
combines, and the memory has nothing to do. `read_ahead` gives it something: each program asks for
its share of the bytes that a later kernel will load. Weights are never written, so this is safe
above the wait, and a wrong guess costs time, never an answer.

On sm_90 one thread asks for the whole share (PTX ISA, `cp.async.bulk.prefetch`); before that every
thread asks for lines of 128 bytes (`prefetch`). A barrier of the warp stands before the request:
it costs an instruction, and without it ptxas moves the request above the program's own loads.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape

LINE = tl.constexpr(128)  # bytes that come into L2 with one request
ONE_THREAD = tl.constexpr(
    "{ .reg .pred first; .reg .u32 thread; mov.u32 thread, %tid.x; setp.eq.u32 first, thread, 0; "
    "bar.warp.sync 0xffffffff; @first cp.async.bulk.prefetch.L2.global [$1], $2; mov.u32 $0, 0; }"
)
EACH_THREAD = tl.constexpr("prefetch.global.L2 [$1]; mov.u32 $0, 0;")


@triton.jit
def read_ahead(
    ahead, program, SHARE: tl.constexpr, SPANS: tl.constexpr, GAP: tl.constexpr, BULK: tl.constexpr
):
    """Ask for SHARE bytes of each of SPANS spans: from program · SHARE on in the first, and GAP
    bytes further on in each of the next. SHARE is a multiple of LINE, 0 for nothing."""
    if SHARE:
        first = ahead.to(tl.pointer_type(tl.int8)) + program.to(tl.int64) * SHARE
        for span in tl.static_range(SPANS):
            at = first + span * GAP
            if BULK:
                tl.inline_asm_elementwise(
                    ONE_THREAD, "=r,l,r,~{memory}", [at, SHARE],
                    dtype=tl.int32, is_pure=False, pack=1,
                )  # fmt: skip
            else:
                for start in tl.range(0, SHARE, 256 * LINE, num_stages=1):
                    byte = tl.minimum(start + tl.arange(0, 256) * LINE, SHARE - LINE)
                    tl.inline_asm_elementwise(
                        EACH_THREAD, "=r,l,~{memory}", [at + byte],
                        dtype=tl.int32, is_pure=False, pack=1,
                    )  # fmt: skip


def ahead_options(
    ahead: Tensor | None, limit: int | None, spans: int, programs: int
) -> dict[str, int | bool]:
    """The constants of `read_ahead` for up to `limit` bytes of a tensor, or all; nothing on a CPU.

    Raises ValueError for a tensor that is not in one piece.
    """
    if ahead is None:
        return shares(0, 0, 1, programs) | {"BULK": False}
    check_shape("ahead", ahead, tuple(ahead.shape))
    size = ahead.numel() * ahead.element_size() if ahead.is_cuda else 0
    bulk = ahead.is_cuda and torch.cuda.get_device_capability(ahead.device) >= (9, 0)
    return shares(size, size if limit is None else limit, spans, programs) | {"BULK": bulk}


def shares(size: int, limit: int, spans: int, programs: int) -> dict[str, int]:
    """SHARE, SPANS and GAP for up to `limit` of `size` bytes, in so many equal spans, shared by so
    many programs. Whole lines only, so the last few may be left out. Nothing where that leaves
    nothing, or where a second span would not begin at a multiple of 16 bytes."""
    share, gap = min(size, limit) // (spans * programs * LINE.value) * LINE.value, size // spans
    if not share or gap % 16:
        return {"SHARE": 0, "SPANS": 1, "GAP": 0}
    return {"SHARE": share, "SPANS": spans, "GAP": gap}
