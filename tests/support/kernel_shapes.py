"""The kernels of a decode step at the sizes of real models: what to compile, and what to ask of it.

`cases(config)` gives one `Case` a kernel; two models that need the same kernel give equal cases.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mini_engine.cuda.kernels import (
    activation,
    apart_attention,
    attention,
    fused_attention,
    gemv,
    head,
    norm,
    pick,
    prefill,
    rope,
    sample,
    skinny,
)
from mini_engine.cuda.kernels.ahead import shares
from mini_engine.cuda.kernels.gemv import gemv_plan
from mini_engine.cuda.kernels.launch import H200_SM_COUNT as MULTIPROCESSORS
from mini_engine.cuda.kernels.paged import Heads
from mini_engine.cuda.kernels.plans import BASE, plan_of
from mini_engine.model.config import ModelConfig
from tests.support.kernel_cases import F32, I8, POINTERS, SCALARS, Compiled, compile_for

BLOCK_SIZE = 16
ROOM = 560  # tokens that a request of the decode graph may grow to

# A cache in fp8, as kernels see it, and one that is not
IN_FP8 = (("k_cache", I8), ("v_cache", I8), ("kv_scales", F32))
PLAIN_CACHE = {"kv_scales": None}


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
        """What a launch chooses by the card: how it is asked to read ahead (ahead.py), tiles."""
        constants = dict(self.constants)
        if self.kernel is prefill.prefill_kernel:
            fp8 = self.pointers == IN_FP8
            options = prefill.tile_options(constants["HEAD_DIM"], 2, capability, fp8=fp8)
            return {name: value for name, value in options.items() if name != "num_warps"}
        return {"BULK": capability >= 90} if "BULK" in self.kernel.arg_names else {}


def case(name: str, kernel: Any, warps: int, constants: dict[str, Any], **more: Any) -> Case:
    return Case(name, kernel, tuple(constants.items()), warps, **more)


def cases(c: ModelConfig) -> list[Case]:
    """Every kernel that a decode step of this model may launch, and the prefill."""
    return [*_elementwise(c), *_products(c), *_attention(c), *_head(c)]


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
        case("rope_kv_write", rope.rope_kv_write_kernel, 1, rope_shape | PLAIN_CACHE),
        case("rope_kv_write_fp8", rope.rope_kv_write_kernel, 1, rope_shape, pointers=IN_FP8),
    ]


def _products(c: ModelConfig) -> list[Case]:
    hidden, inner, q = c.hidden_size, c.intermediate_size, c.q_size
    qkv = q + 2 * c.kv_size
    made = []
    for tokens in (1, 4):
        for name, rows, width, normed in (
            ("norm_qkv", qkv, hidden, True),
            ("o_add", hidden, q, False),
            ("down_add", hidden, inner, False),
        ):
            plan = gemv_plan(rows, width)
            shape = {"M": tokens, "N": rows, "K": width, "ROWS": plan.rows}
            shape |= {"CHUNK": plan.chunk, "CHUNKS": plan.chunks}
            flags = {"NORM": normed, "BIAS": False, "ADD": not normed, "bias": None}
            made.append(
                case(
                    f"{name}_m{tokens}",
                    gemv.linear_kernel,
                    plan.warps,
                    shape | flags | ({} if normed else {"norm_weight": None}),
                    programs=plan.num_programs(rows) if name == "o_add" and tokens == 1 else 0,
                    prefetched=plan.rows * width * c.dtype_bytes,
                )
            )
        plan = gemv_plan(inner, hidden, pairs=True)
        shape = {"M": tokens, "N": inner, "K": hidden, "ROWS": plan.rows}
        made.append(
            case(
                f"norm_gate_up_m{tokens}",
                gemv.gate_up_kernel,
                plan.warps,
                shape | {"CHUNK": plan.chunk, "CHUNKS": plan.chunks},
                prefetched=2 * plan.rows * hidden * c.dtype_bytes,
            )
        )
    return made + _skinny(c)


def _skinny(c: ModelConfig) -> list[Case]:
    hidden, inner = c.hidden_size, c.intermediate_size
    qkv = c.q_size + 2 * c.kv_size
    norms, pair = skinny.skinny_plan(qkv, hidden), skinny.skinny_plan(inner, hidden)
    down = skinny.skinny_plan(hidden, inner, split=True)
    common = {"M": 16, "BIAS": False, "bias": None}
    first = common | {"N": qkv, "K": hidden, "NORM": True, "ADD": False}
    second = common | {"N": hidden, "K": inner, "NORM": False, "ADD": False, "norm_weight": None}
    return [
        case(
            "norm_qkv_m16",
            skinny.skinny_kernel,
            skinny.WARPS,
            first | {"ROWS": skinny.ROWS, "CHUNK": norms.chunk, "SPLIT_WIDTH": norms.split_width},
            stages=skinny.STAGES,
        ),
        case(
            "down_split_m16",
            skinny.skinny_kernel,
            skinny.WARPS,
            second | {"ROWS": skinny.ROWS, "CHUNK": down.chunk, "SPLIT_WIDTH": down.split_width},
            stages=skinny.STAGES,
            pointers=(("out", F32),),
        ),
        case(
            "down_reduce_m16",
            skinny.reduce_kernel,
            4,
            {"SIZE": 16 * hidden, "SPLITS": down.splits, "BLOCK": skinny.REDUCE_BLOCK, "ADD": True},
        ),
        case(
            "norm_gate_up_m16",
            skinny.skinny_gate_up_kernel,
            skinny.WARPS,
            {"M": 16, "N": inner, "K": hidden, "ROWS": skinny.ROWS, "CHUNK": pair.chunk},
            stages=skinny.STAGES,
        ),
    ]


def _attention(c: ModelConfig) -> list[Case]:
    heads = Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK_SIZE)
    shape = heads.constants
    every = shape | {"REQS": prefill.REQUESTS}
    grouped = shape | {"PADDED_GROUP": heads.padded_group}
    splits, decode = attention.MAX_SPLITS, attention.decode_split_kernel
    many = {"SPLITS": splits, "PADDED_SPLITS": splits, "TILE": attention.TILE}
    alone = many | {"SPLITS": 1, "PADDED_SPLITS": 1}  # what `num_splits` says of batch 256
    return [
        case("decode_attention", decode, 4, grouped | many | PLAIN_CACHE),
        case("decode_attention_m256", decode, 4, grouped | alone | PLAIN_CACHE),
        case("decode_attention_fp8", decode, 4, grouped | many, pointers=IN_FP8),
        fused_attention_case(c, "fused_attention", BASE),
        fused_attention_case(c, "fused_attention_fp8", BASE, fp8=True),
        fused_attention_case(c, "fused_attention_4w", "attention"),
        fused_attention_case(c, "fused_attention_apart", "attention-apart"),
        case("prefill", prefill.prefill_kernel, 8, every | PLAIN_CACHE),
        case("prefill_fp8", prefill.prefill_kernel, 8, every, pointers=IN_FP8),
    ]


def fused_attention_case(
    c: ModelConfig, name: str, plan: str, room: int = ROOM, ahead: int = 0, fp8: bool = False
) -> Case:
    """Of one request with room for so many tokens. ahead: bytes of gate and up that it prefetches,
    where the card can. fp8: the cache."""
    chosen, heads = plan_of(plan), Heads(c.num_heads, c.num_kv_heads, c.head_dim, BLOCK_SIZE)
    splits = fused_attention.num_splits(room, 1, c.num_kv_heads, 4 * MULTIPROCESSORS, plan)
    options = fused_attention.attention_options(heads, splits, room, chosen)
    apart = apart_attention.apart_attention_kernel
    weight = 2 * c.intermediate_size * c.hidden_size * c.dtype_bytes
    return case(
        name,
        apart if chosen.current_apart else fused_attention.fused_attention_kernel,
        options.pop("num_warps"),
        options
        | shares(weight, ahead, 2, splits * c.num_kv_heads)
        | ({} if ahead else {"ahead": None})
        | {"QK_NORM": c.qk_norm}
        | ({} if fp8 or chosen.current_apart else PLAIN_CACHE)
        | _no_qk_norm(c),
        pointers=IN_FP8 if fp8 else (),
        programs=c.num_kv_heads * splits,
        prefetched=2 * chosen.attention_tile * c.head_dim * (1 if fp8 else c.dtype_bytes),
    )


def _head(c: ModelConfig) -> list[Case]:
    plan = gemv_plan(c.vocab_size, c.hidden_size)
    partials = head.num_programs(c.vocab_size, c.hidden_size)
    made = []
    for tokens in (1, 4):
        shape = {"M": tokens, "V": c.vocab_size, "K": c.hidden_size, "ROWS": plan.rows}
        shape |= {"CHUNK": plan.chunk, "CHUNKS": plan.chunks, "TILES": head.TILES}
        made.append(
            case(
                f"norm_lm_head_m{tokens}",
                head.head_kernel,
                plan.warps,
                shape | {"LOGITS": True},  # every arm wants them, for the gate
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
    vocab = {"V": c.vocab_size}
    cutoffs, drawn = {"BLOCK": sample.CUTOFF_BLOCK}, {"BLOCK": sample.DRAW_BLOCK}
    return [
        *made,
        case("pick_and_advance", pick.pick_kernel, 4, advanced),
        case("find_cutoffs_m4", sample.cutoff_kernel, sample.CUTOFF_WARPS, vocab | cutoffs),
        case("draw_m4", sample.draw_kernel, sample.DRAW_WARPS, vocab | drawn),
    ]


def _no_qk_norm(c: ModelConfig) -> dict[str, None]:
    return {} if c.qk_norm else {"q_norm": None, "k_norm": None}
