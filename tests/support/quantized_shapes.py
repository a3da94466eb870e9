"""The kernels of quantised weights at the sizes of real models, as cases of kernel_shapes.py."""

from __future__ import annotations

from typing import Any

from mini_engine.cuda.kernels import gemv_quantized as kernels
from mini_engine.model.config import ModelConfig
from tests.support.kernel_cases import F32, I32
from tests.support.kernel_shapes import Case, case

FORMS = {"int8": 8, "int4": 4}  # bits
PRODUCTS = ("norm_qkv", "o_add", "norm_gate_up", "down_add")


def quantized(c: ModelConfig, product: str, form: str, tokens: int = 1) -> Case:
    """One of PRODUCTS in one of FORMS: "norm_qkv_m1_int4"."""
    bits = FORMS[form]
    rows, width = {
        "norm_qkv": (c.q_size + 2 * c.kv_size, c.hidden_size),
        "o_add": (c.hidden_size, c.q_size),
        "norm_gate_up": (c.intermediate_size, c.hidden_size),
        "down_add": (c.hidden_size, c.intermediate_size),
    }[product]
    pairs, normed = product == "norm_gate_up", product.startswith("norm")
    plan = kernels.quantized_plan(rows, width, bits, tokens=tokens, pairs=pairs)
    constants: dict[str, Any] = {"M": tokens, "N": rows, "K": width, "BITS": bits}
    constants |= {"ROWS": plan.rows, "CHUNK": plan.chunk, "CHUNKS": plan.chunks}
    constants |= {"GROUPED": bits == 4} | ({} if bits == 4 else {"zeros": None})
    constants |= {"GATED": pairs, "NORM": normed, "BIAS": False, "bias": None}
    constants |= {"ADD": not normed} | ({} if normed else {"norm_weight": None})
    return case(
        f"{product}_m{tokens}_{form}",
        kernels.quantized_product_kernel,
        plan.warps,
        constants,
        pointers=(("packed", I32), ("scales", "*fp16" if bits == 4 else F32), ("zeros", "*u8")),
        programs=plan.num_programs(rows) if product == "o_add" else 0,
        prefetched=plan.rows * (2 if pairs else 1) * width * bits // 8,
    )
