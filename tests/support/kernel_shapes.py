"""The kernels of a decode step at the sizes of real models: what to compile, and what to ask of it.

`cases(config)` gives one `Case` a kernel; two models that need the same kernel give equal cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from mini_engine.cuda.kernels import (
    activation,
    attention,
    fused_attention,
    gemv,
    gemv_dot,
    head,
    norm,
    pick,
    prefill,
    rope,
)
from mini_engine.cuda.kernels.gemv import GemvPlan, gemv_plan
from mini_engine.cuda.kernels.launch import H200_SM_COUNT as MULTIPROCESSORS
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.model.config import ModelConfig
from tests.support.kernel_cases import F32, POINTERS, SCALARS, Compiled, compile_for

BLOCK_SIZE = 16
ROOM = 560  # tokens that a request of the decode graph may grow to


@dataclass(frozen=True)
class Case:
    """One kernel at one shape. `constants` are pairs, so that a case can be a key."""

    name: str
    kernel: Any
    constants: tuple[tuple[str, Any], ...]
    warps: int
    stages: int = 3
    pointers: tuple[tuple[str, str], ...] = ()  # that differ from POINTERS
    programs: int = 0  # 0: any number of waves will do
    prefetched: int = 0  # bytes of weights (or past K and V) that a program loads above the wait

    def compile(self, capability: int, *, pdl: bool) -> Compiled:
        return compile_for(
            self.kernel,
            {**POINTERS, **dict(self.pointers)},
            {**dict(self.constants), "PDL": pdl} | self._of_the_card(capability),
            capability=capability,
            num_warps=self.warps,
            num_stages=self.stages,
            scalars=SCALARS,
        )

    def _of_the_card(self, capability: int) -> dict[str, int]:
        """What a launch chooses by the card: the tiles of a prefill."""
        constants = dict(self.constants)
        if self.kernel is prefill.prefill_kernel:
            options = prefill.tile_options(constants["HEAD_DIM"], 2, capability)
            return {name: value for name, value in options.items() if name != "num_warps"}
        return {}


def case(name: str, kernel: Any, warps: int, constants: dict[str, Any], **more: Any) -> Case:
    return Case(name, kernel, tuple(constants.items()), warps, **more)


def cases(c: ModelConfig) -> list[Case]:
    """Every kernel that a decode step of this model may launch, and the prefill."""
    return [*_elementwise(c), *products(c), *_attention(c), *_head(c)]


def _elementwise(c: ModelConfig) -> list[Case]:
    row = norm.row_options(c.hidden_size)
    warps = row.pop("num_warps")
    rope_shape = {
        "Q_HEADS": c.num_heads,
        "KV_HEADS": c.num_kv_heads,
        "HEAD_DIM": c.head_dim,
        "QK_NORM": c.qk_norm,
        **_no_qk_norm(c),
    }
    return [
        case("rms_norm", norm.rms_norm_kernel, warps, row),
        case("add_rms_norm", norm.add_rms_norm_kernel, warps, row),
        case(
            "silu_mul",
            activation.silu_mul_kernel,
            4,
            {"WIDTH": c.intermediate_size, "BLOCK": activation.BLOCK},
        ),
        case("rope_kv_write", rope.rope_kv_write_kernel, 1, rope_shape),
    ]


def products(c: ModelConfig, *, dot: bool = True) -> list[Case]:
    """The products of a layer for 1 and 4 tokens: on tensor cores, or in gemv.py's registers."""
    hidden, inner, q = c.hidden_size, c.intermediate_size, c.q_size
    made = []
    for tokens in (1, 4):
        for name, rows, width, normed in (
            ("norm_qkv", q + 2 * c.kv_size, hidden, True),
            ("o_add", hidden, q, False),
            ("down_add", hidden, inner, False),
        ):
            plan = gemv_plan(rows, width)
            shape, warps = product_shape(plan, dot)
            shape |= {"M": tokens, "N": rows, "K": width}
            flags = {"NORM": normed, "BIAS": False, "ADD": not normed, "bias": None}
            flags |= {"GATED": False} if dot else {}
            made.append(
                case(
                    f"{name}_m{tokens}",
                    gemv_dot.dot_product_kernel if dot else gemv.linear_kernel,
                    warps,
                    shape | flags | ({} if normed else {"norm_weight": None}),
                    programs=plan.num_programs(rows) if name == "o_add" and tokens == 1 else 0,
                    prefetched=plan.rows * width * c.dtype_bytes,
                )
            )
        plan = gemv_plan(inner, hidden, pairs=True)
        shape, warps = product_shape(plan, dot)
        flags = {"GATED": True, "NORM": True, "BIAS": False, "ADD": False, "bias": None}
        shape |= flags if dot else {}
        made.append(
            case(
                f"norm_gate_up_m{tokens}",
                gemv_dot.dot_product_kernel if dot else gemv.gate_up_kernel,
                warps,
                shape | {"M": tokens, "N": inner, "K": hidden},
                prefetched=2 * plan.rows * hidden * c.dtype_bytes,
            )
        )
    return made


def product_shape(plan: GemvPlan, dot: bool) -> tuple[dict[str, int], int]:
    """The constants of a plan, and its warps."""
    shape = {"ROWS": plan.rows, "CHUNK": plan.chunk, "CHUNKS": plan.chunks}
    if not dot:
        return shape, plan.warps
    on_tensor_cores = gemv_dot.dot_plan(plan, torch.empty(0, dtype=torch.bfloat16))
    assert on_tensor_cores is not None
    return shape | {"SLICES": on_tensor_cores.warps}, on_tensor_cores.warps


def _attention(c: ModelConfig) -> list[Case]:
    heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK_SIZE)
    shape = heads.constants
    every = shape | {"REQS": prefill.REQUESTS}
    grouped = shape | {"PADDED_GROUP": heads.padded_group}
    splits, decode = attention.MAX_SPLITS, attention.decode_split_kernel
    many = {"SPLITS": splits, "PADDED_SPLITS": splits, "TILE": attention.TILE}
    alone = many | {"SPLITS": 1, "PADDED_SPLITS": 1}  # what `num_splits` says of batch 256
    return [
        case("decode_attention", decode, 4, grouped | many),
        case("decode_attention_m256", decode, 4, grouped | alone),
        fused_attention_case(c, "fused_attention"),
        case("prefill", prefill.prefill_kernel, 8, every),
    ]


def fused_attention_case(c: ModelConfig, name: str, room: int = ROOM) -> Case:
    """Of one request with room for so many tokens."""
    heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK_SIZE)
    splits = fused_attention.num_splits(room, 1, c.num_kv_heads, 4 * MULTIPROCESSORS)
    options = fused_attention.attention_options(heads, splits, room)
    return case(
        name,
        fused_attention.fused_attention_kernel,
        options.pop("num_warps"),
        options | {"QK_NORM": c.qk_norm} | _no_qk_norm(c),
        programs=c.num_kv_heads * splits,
        prefetched=2 * fused_attention.TILE * c.head_dim * c.dtype_bytes,
    )


def _head(c: ModelConfig) -> list[Case]:
    plan = gemv_plan(c.vocab_size, c.hidden_size)
    partials = head.num_programs(c.vocab_size, c.hidden_size)
    made = []
    for tokens in (1, 4):
        shape, warps = product_shape(plan, dot=True)
        shape |= {"M": tokens, "V": c.vocab_size, "K": c.hidden_size, "TILES": head.TILES}
        made.append(
            case(
                f"norm_lm_head_m{tokens}",
                head.head_kernel,
                warps,
                shape,
                pointers=(("logits", F32),),
                prefetched=plan.rows * c.hidden_size * c.dtype_bytes,
            )
        )
    advanced = {
        "PARTIALS": partials,
        "BLOCK": pick.PICK_BLOCK,
        "BLOCK_SIZE": BLOCK_SIZE,
        "ADVANCE": True,
    }
    return [*made, case("pick_and_advance", pick.pick_kernel, 4, advanced)]


def _no_qk_norm(c: ModelConfig) -> dict[str, None]:
    return {} if c.qk_norm else {"q_norm": None, "k_norm": None}
