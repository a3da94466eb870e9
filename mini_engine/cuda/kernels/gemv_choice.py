"""Which kernel multiplies 1 to 4 tokens: gemv.py's own, or an alternative of gemv_variants.py.

In:  a plan (`KernelPlan`) and the tensors of a product. Out: a launch.

`variant_of` says what a plan comes to for given tensors: "pairs" and "dot" are about bf16, so
float32 is multiplied as ever. gemv.py's kernels run where the plan names no alternative to them.
When a GPU has told which is best, the others are deleted: a file each, and their branches in the
parts that all share.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from mini_engine.cuda.kernels import gemv as base
from mini_engine.cuda.kernels.ahead import ahead_options
from mini_engine.cuda.kernels.gemv import GemvPlan
from mini_engine.cuda.kernels.gemv_dot import DOT_COLUMNS
from mini_engine.cuda.kernels.gemv_variants import gate_up_variant_kernel, linear_variant_kernel
from mini_engine.cuda.kernels.launch import launch_options
from mini_engine.cuda.kernels.plans import KernelPlan, Product

PAST_L1, THROUGH_L1 = ".cg", ""


@dataclass(frozen=True)
class Variant:
    """A GEMV plan, and what the kernels here do with it."""

    gemv: GemvPlan
    product: Product
    cache: str  # of x

    @property
    def is_base(self) -> bool:
        """Do gemv.py's own kernels do the same?"""
        return self.product == "widened" and self.cache == PAST_L1

    @property
    def constants(self) -> dict[str, int | str]:
        """What a launch adds to the base kernels' constants."""
        slices = self.gemv.warps if self.product == "dot" else 1
        return {"PRODUCT": self.product, "SLICES": slices, "CACHE": self.cache}


def variant_of(plan: KernelPlan, gemv: GemvPlan, elements: int, *tensors: Tensor) -> Variant:
    """What `plan` makes of a GEMV plan whose program holds `elements` of a weight.

    Fewer elements a thread: 8 warps from fewer elements on. "pairs" wants bf16 in whole words, so
    an even width and no tensor that begins in the middle of one; "dot" wants bf16 and chunks of at
    least DOT_COLUMNS for each warp, and takes fewer warps where the chunk is short of that (a real
    model's is never short of four). What does not fit is "widened".
    """
    if plan.thread_elements != base.THREAD_ELEMENTS:
        gemv = replace(gemv, warps=8 if elements >= 8 * 32 * plan.thread_elements else 4)
    bf16 = all(tensor.dtype == torch.bfloat16 for tensor in tensors)
    words = all(t.shape[-1] % 2 == 0 and t.data_ptr() % 4 == 0 for t in tensors)
    slices = min(gemv.warps, gemv.chunk // DOT_COLUMNS)
    product: Product = "widened"
    if plan.product == "pairs" and bf16 and words:
        product = "pairs"
    if plan.product == "dot" and bf16 and slices:
        product, gemv = "dot", replace(gemv, warps=slices)
    return Variant(gemv, product, THROUGH_L1 if plan.x_in_l1 else PAST_L1)


# ---------------------------------------------------------------- launches


def words_of(product: Product, *tensors: Tensor) -> list[Tensor]:
    """The tensors as the product reads them: int32 for "pairs"."""
    return [t.view(torch.int32) if product == "pairs" else t for t in tensors]


def launch_linear(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor | None,
    weight: Tensor,
    bias: Tensor | None,
    eps: float,
    add: bool,
    pdl: bool,
    gemv: GemvPlan,
    plan: KernelPlan,
    ahead: Tensor | None = None,
) -> None:
    """As `launch_linear` of gemv.py, with the alternatives of `plan`. Where it prefetches, all of
    `ahead`, the weight of a later kernel, comes to L2 meanwhile."""
    num_rows, width = weight.shape
    tensors = [x, weight] + ([] if norm_weight is None else [norm_weight])
    variant = variant_of(plan, gemv, gemv.rows * width, *tensors)
    gemv = variant.gemv
    programs = gemv.num_programs(num_rows)
    options = ahead_options(ahead if plan.prefetch else None, None, 1, programs)
    if variant.is_base and not options["SHARE"]:
        base.launch_linear(out, x, norm_weight, weight, bias, eps, add, pdl, gemv)
        return
    x_read, weight_read, *gain = words_of(variant.product, *tensors)
    linear_variant_kernel[(programs,)](
        out, x_read, gain[0] if gain else None, weight_read, bias,
        ahead if options["SHARE"] else None, eps,
        M=len(x), N=num_rows, K=width, ROWS=gemv.rows, CHUNK=gemv.chunk, CHUNKS=gemv.chunks,
        NORM=norm_weight is not None, BIAS=bias is not None, ADD=add,
        **variant.constants, **options, num_warps=gemv.warps, **launch_options(pdl, x.device),
    )  # fmt: skip


def launch_gate_up(
    out: Tensor,
    x: Tensor,
    norm_weight: Tensor,
    weight: Tensor,
    eps: float,
    pdl: bool,
    gemv: GemvPlan,
    plan: KernelPlan,
) -> None:
    """As `launch_gate_up` of gemv.py, with the alternatives of `plan`."""
    num_pairs, width = weight.shape[0] // 2, weight.shape[1]
    tensors = [x, weight, norm_weight]
    variant = variant_of(plan, gemv, 2 * gemv.rows * width, *tensors)
    gemv = variant.gemv
    if variant.is_base:
        base.launch_gate_up(out, x, norm_weight, weight, eps, pdl, gemv)
        return
    x_read, weight_read, gain = words_of(variant.product, *tensors)
    gate_up_variant_kernel[(gemv.num_programs(num_pairs),)](
        out, x_read, gain, weight_read, eps, M=len(x), N=num_pairs, K=width,
        ROWS=gemv.rows, CHUNK=gemv.chunk, CHUNKS=gemv.chunks, **variant.constants,
        num_warps=gemv.warps, **launch_options(pdl, x.device),
    )  # fmt: skip
