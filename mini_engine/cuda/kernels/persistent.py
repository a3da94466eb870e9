"""All layers of a decode step of one token in one kernel that stays on the GPU.

    persistent_layers:   the five phases of the five-kernel step, layer after layer
        0  qkv = RMSNorm(residual) · QKVᵀ (+ bias)    3  activated = silu(gate) · up, of the norm
        1  RoPE, KV write, attention -> attended      4  residual += activated · downᵀ
        2  residual += attended · Oᵀ

In:  residual (1, H); of each layer its nine weights (`WEIGHTS`), keys and values; `table`, all
     their addresses (`addresses`); block_table (1, max_blocks) and context_lens (1,) int32;
     cos, sin as in rope.py; counters (`num_counters`,) int32, zeros, which every launch leaves.
Out: residual; the current K and V in each layer's cache.

Between two phases stands a grid barrier (persistent_parts.py), 5 L - 1 of them a step. It costs
more than the boundary between two kernels of a graph, so one kernel can only win by what it does
meanwhile: each program already loads its share of the next weights into registers. Whether that
pays is not yet measured.

The launch is cooperative: one program a multiprocessor, or the driver refuses it. A CUDA graph
takes such a launch since CUDA 11.1: `cooperative` is an attribute of kernel nodes (CUDA Driver API,
CUlaunchAttributeID: "valid for graph nodes, launches"). It is not combined with PDL: the kernel
starts when all before it has ended, so what it loads above its barriers is what nobody writes in
this step. The last program to leave sets the counters back to zero, so a graph can be replayed. Two
launches at a time need counters of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import triton
from torch import Tensor

from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.fused_attention import MAX_SPLITS, rope_kv_write_attention
from mini_engine.cuda.kernels.gemv import chunk_of
from mini_engine.cuda.kernels.interpreter import INTERPRETED
from mini_engine.cuda.kernels.launch import runs_triton, sm_count
from mini_engine.cuda.kernels.linear import linear_add, norm_gate_up_silu_mul, norm_linear
from mini_engine.cuda.kernels.paged import Heads, new_partials
from mini_engine.cuda.kernels.persistent_kernel import COLUMNS, HEAD_COUNTERS, persistent_kernel
from mini_engine.cuda.kernels.rope import check_rotary, has_qk_norm

WEIGHTS = 9  # input_norm, qkv, its bias, q_norm, k_norm, o, post_norm, gate_up, down
WARPS = 8  # all registers of a multiprocessor are one program's: up to 255 a thread
TILE_BYTES = 64 * 1024  # of a weight in one tile
HELD_BYTES = 96 * 1024  # of a weight in one program's registers while it waits


class Share(NamedTuple):
    """How the rows of a product are dealt out: in tiles, tile t to program t % programs."""

    rows: int  # N: of the weight, or pairs of them
    width: int  # K
    tile_rows: int  # divides N
    chunk: int
    chunks: int
    held: int  # tiles in registers at once
    more: int  # tiles beyond those, rounded up to a multiple of them


def share(
    rows: int, width: int, programs: int, element_bytes: int, *, pairs: bool = False
) -> Share:
    """Of the tiles that divide the rows and have at most TILE_BYTES, the largest that gives the
    busiest program hardly more rows than the best does. A share of at most HELD_BYTES is held
    whole; of a larger one, two tiles of half the size at a time."""
    row_bytes = width * element_bytes * (2 if pairs else 1)
    whole = -(-rows // programs) * row_bytes <= HELD_BYTES
    most = TILE_BYTES if whole else TILE_BYTES // 2
    fits = [r for r in (32, 16, 8, 4, 2, 1) if rows % r == 0 and (r * row_bytes <= most or r == 1)]
    busiest = {r: -(-rows // r // programs) * r for r in fits}
    tile = max(r for r in fits if busiest[r] <= 1.15 * min(busiest.values()))
    trips = busiest[tile] // tile
    held = trips if busiest[tile] * row_bytes <= HELD_BYTES else min(2, trips)
    chunk = chunk_of(width, 2048)
    more = -(-(trips - held) // held) * held
    return Share(rows, width, tile, chunk, -(-width // chunk), held, more)


class Plan(NamedTuple):
    """What the kernel is compiled for."""

    programs: int
    qkv: Share
    o: Share
    gate_up: Share
    down: Share
    heads: tuple[int, ...]  # as in persistent_parts.py
    bias: bool
    qk_norm: bool

    def constants(self, only: int = -1) -> dict[str, object]:
        """The kernel's. `only`: one phase, without barriers; -1: all."""
        flags = {"BIAS": self.bias, "QK_NORM": self.qk_norm, "SYNC": only < 0, "ONLY": only}
        shares = {"QKV": self.qkv, "O": self.o, "GATE_UP": self.gate_up, "DOWN": self.down}
        return {"PROGRAMS": self.programs, "HEADS": self.heads, **shares, **flags}


def persistent_plan(
    heads: Heads,
    hidden: int,
    inner: int,
    context: int,
    programs: int,
    *,
    bias: bool,
    qk_norm: bool,
    element_bytes: int = 2,
) -> Plan:
    """For contexts of up to `context` tokens. Splits: as many as there are programs for. A tile has
    16 to 64 keys, so that one a split will do if it can."""
    splits = max(1, min(programs // heads.num_kv_heads, MAX_SPLITS, -(-context // 16)))
    tile = min(64, max(16, triton.next_power_of_2(-(-context // splits))))
    items = -(-heads.num_kv_heads * splits // programs)
    q, e = heads.num_heads * heads.head_dim, element_bytes
    return Plan(
        programs,
        qkv=share(heads.qkv_size, hidden, programs, e),
        o=share(hidden, q, programs, e),
        gate_up=share(inner, hidden, programs, e, pairs=True),
        down=share(hidden, inner, programs, e),
        heads=(
            *(heads.num_kv_heads, heads.group_size, heads.padded_group, heads.head_dim),
            *(heads.block_size, splits, triton.next_power_of_2(splits), tile, items),
        ),
        bias=bias,
        qk_norm=qk_norm,
    )


def addresses(
    weights: Sequence[Tensor | None], keys: Sequence[Tensor], values: Sequence[Tensor]
) -> Tensor:
    """The table (L, 11) int64 on the device of the keys. It holds no reference: keep the tensors.

    weights: WEIGHTS of the first layer, then of the second, ...; None where a model has none.
    """
    rows = [
        [0 if t is None else t.data_ptr() for t in (*weights[at : at + WEIGHTS], k, v)]
        for at, k, v in zip(range(0, len(weights), WEIGHTS), keys, values, strict=True)
    ]
    return torch.tensor(rows, dtype=torch.int64).to(keys[0].device)


def num_counters(num_kv_heads: int) -> int:
    """Of one model: arrived, left, and how many splits of each head are done."""
    return int(HEAD_COUNTERS) + num_kv_heads


@torch.library.custom_op(
    "launch_bound::persistent_layers", mutates_args=("residual", "keys", "values", "counters")
)
def persistent_layers(
    residual: Tensor,
    keys: Sequence[Tensor],
    values: Sequence[Tensor],
    counters: Tensor,
    weights: Sequence[Tensor | None],
    table: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float = 1e-6,
) -> None:
    """Shapes as at the top of the file; `table` is the `addresses` of weights, keys and values."""
    if len(weights) != WEIGHTS * len(keys) or len(keys) != len(values):
        raise ValueError(
            f"{len(weights)} weights, {len(keys)} keys and {len(values)} values, "
            f"expected {WEIGHTS} weights, one of keys and one of values for each layer"
        )
    _, qkv, bias, q_norm, k_norm, o, _, _, down = weights[:WEIGHTS]
    assert qkv is not None and o is not None and down is not None  # noqa: PT018
    hidden, inner = down.shape
    check_shape("residual", residual, (1, hidden))
    attended = residual.new_empty(1, o.shape[1])
    heads = Heads.of(attended, keys[0], values[0])
    check_shape("qkv", qkv, (heads.qkv_size, hidden))
    heads.check_tables(1, block_table, context_lens)
    check_rotary(heads, cos, sin)
    qk_norm = has_qk_norm(heads, q_norm, k_norm)
    check_shape("table", table, (len(keys), int(COLUMNS)))
    check_shape("counters", counters, (num_counters(heads.num_kv_heads),))
    if not runs_triton(residual):
        for i, (k, v) in enumerate(zip(keys, values, strict=True)):
            layer = weights[i * WEIGHTS : (i + 1) * WEIGHTS]
            layer_reference(residual, k, v, layer, heads, block_table, context_lens, cos, sin, eps)
        return
    if INTERPRETED and not table.equal(addresses(weights, keys, values)):
        raise ValueError("table holds other addresses: make it with addresses(), for these tensors")
    plan = persistent_plan(
        heads, hidden, inner, block_table.shape[1] * heads.block_size,
        1 if INTERPRETED else sm_count(residual.device),
        bias=bias is not None, qk_norm=qk_norm, element_bytes=residual.element_size(),
    )  # fmt: skip
    launch(
        plan, residual, new_scratch(plan, heads, residual), counters, table,
        block_table, context_lens, cos, sin, (0, len(keys)), eps,
    )  # fmt: skip


def new_scratch(plan: Plan, heads: Heads, residual: Tensor) -> tuple[Tensor, ...]:
    """What the phases hand on: qkv, attended, activated, and the attention's partials."""
    sizes = (heads.qkv_size, heads.num_heads * heads.head_dim, plan.gate_up.rows)
    rows = (residual.new_empty(1, size) for size in sizes)
    return (*rows, *new_partials(1, heads, plan.heads[5], residual.device))


def launch(
    plan: Plan,
    residual: Tensor,
    scratch: tuple[Tensor, ...],
    counters: Tensor,
    table: Tensor,
    block_table: Tensor,
    context_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    layers: tuple[int, int],
    eps: float,
    only: int = -1,
) -> None:
    """Layers from the first of `layers` to before the second; `only`: as in `Plan.constants`."""
    persistent_kernel[(plan.programs,)](
        residual, *scratch, counters, table, block_table, context_lens, cos, sin,
        *layers, blocks=block_table.shape[1], eps=eps, scale=plan.heads[3] ** -0.5,
        **plan.constants(only), num_warps=WARPS, num_stages=1, launch_cooperative_grid=True,
    )  # fmt: skip


def layer_reference(
    residual: Tensor,
    keys: Tensor,
    values: Tensor,
    weights: Sequence[Tensor | None],
    heads: Heads,
    block_table: Tensor,
    context_lens: Tensor,
    cos: Tensor,
    sin: Tensor,
    eps: float,
) -> None:
    """One layer by the five ops, whose own references run on a CPU."""
    input_norm, qkv, bias, q_norm, k_norm, o, post_norm, gate_up, down = weights
    assert gate_up is not None
    product = residual.new_empty(1, heads.qkv_size)
    attended = residual.new_empty(1, heads.num_heads * heads.head_dim)
    norm_linear(product, residual, input_norm, qkv, eps, bias)
    counters = torch.zeros(1, heads.num_kv_heads, dtype=torch.int32, device=residual.device)
    rope_kv_write_attention(
        attended, keys, values, counters, product, block_table, context_lens,
        cos, sin, 1, q_norm, k_norm, eps,
    )  # fmt: skip
    linear_add(residual, attended, o)
    activated = residual.new_empty(1, gate_up.shape[0] // 2)
    norm_gate_up_silu_mul(activated, residual, post_norm, gate_up, eps)
    linear_add(residual, activated, down)
