"""The GEMV kernels' alternatives at the sizes of real models, as cases of kernel_shapes.py."""

from __future__ import annotations

from typing import Any

import torch

from mini_engine.cuda.kernels import gemv_variants, head, head_variants
from mini_engine.cuda.kernels.ahead import shares
from mini_engine.cuda.kernels.gemv import gemv_plan
from mini_engine.cuda.kernels.gemv_choice import variant_of
from mini_engine.cuda.kernels.plans import plan_of
from mini_engine.model.config import ModelConfig
from tests.support.kernel_cases import F32, I32
from tests.support.kernel_shapes import Case, case

PRODUCTS = ("norm_qkv", "o_add", "norm_gate_up", "down_add", "norm_lm_head")


def alternative(c: ModelConfig, product: str, plan: str, tokens: int = 1, ahead: int = 0) -> Case:
    """One of PRODUCTS as the plan of this name runs it: "norm_qkv_m1_dot". ahead: bytes of a later
    weight that QKV, O or down brings to L2.

    The case knows how many of its programs must be resident at once (QKV and O: all of them).
    """
    qkv, normed = c.q_size + 2 * c.kv_size, product.startswith("norm")
    rows, width = {
        "norm_qkv": (qkv, c.hidden_size),
        "o_add": (c.hidden_size, c.q_size),
        "norm_gate_up": (c.intermediate_size, c.hidden_size),
        "down_add": (c.hidden_size, c.intermediate_size),
        "norm_lm_head": (c.vocab_size, c.hidden_size),
    }[product]
    pairs = product == "norm_gate_up"
    gemv = gemv_plan(rows, width, pairs=pairs)
    elements = gemv.rows * width * (2 if pairs else 1)
    variant = variant_of(plan_of(plan), gemv, elements, torch.empty(0, 2, dtype=torch.bfloat16))
    kernel, constants = _kernel(product, normed)
    made = {"M": tokens, ("V" if product == "norm_lm_head" else "N"): rows, "K": width}
    programs = gemv.num_programs(rows)
    if kernel is gemv_variants.linear_variant_kernel:
        constants |= shares(ahead, ahead, 1, programs) | ({} if ahead else {"ahead": None})
    made |= {"ROWS": gemv.rows, "CHUNK": gemv.chunk, "CHUNKS": gemv.chunks} | constants
    words = dict.fromkeys(("x", "weight", "norm_weight"), I32) if variant.product == "pairs" else {}
    return case(
        f"{product}_m{tokens}_{plan}",
        kernel,
        variant.gemv.warps,
        made | variant.constants,
        pointers=tuple({"logits": F32, **words}.items()),
        programs=programs if product in ("norm_qkv", "o_add") else 0,
        prefetched=elements * c.dtype_bytes,
    )


def _kernel(product: str, normed: bool) -> tuple[Any, dict[str, Any]]:
    """The kernel, and its constants beside the shape and the variant's."""
    if product == "norm_lm_head":
        flags = {"TILES": head.TILES, "LOGITS": False, "logits": None}
        return head_variants.head_variant_kernel, flags
    if product == "norm_gate_up":
        return gemv_variants.gate_up_variant_kernel, {}
    flags = {"NORM": normed, "BIAS": False, "ADD": not normed, "bias": None}
    return gemv_variants.linear_variant_kernel, flags | ({} if normed else {"norm_weight": None})
