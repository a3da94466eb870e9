"""The persistent kernel: the five phases of every layer, a grid barrier between any two of them.

persistent.py has its op and says what goes in and out, persistent_parts.py has its parts.

Triton's interpreter runs programs one after another, where a barrier of several would hang. There
one program does it all, or several run one phase of one layer a launch (ONLY), without SYNC.
"""

from __future__ import annotations

import triton
import triton.language as tl

from mini_engine.cuda.kernels.gemv import load_vector
from mini_engine.cuda.kernels.persistent_parts import (
    arrive,
    attention,
    first_keys,
    hold,
    product,
    wait,
)

COLUMNS = tl.constexpr(11)  # of the table: nine weights, keys, values
LEFT = tl.constexpr(32)  # the second counter, on a cache line of its own: who has left
HEAD_COUNTERS = tl.constexpr(64)  # from here on one for each KV head: the combine of its splits


@triton.jit
def address(table, layer, COLUMN: tl.constexpr, KIND: tl.constexpr):
    """A pointer of the table. Torch aligns what it allocates to 16 bytes and more."""
    at = tl.load(table + layer * COLUMNS + COLUMN)
    return tl.multiple_of(at.to(tl.pointer_type(KIND)), 16)


@triton.jit
def addresses_of(table, layer, KIND: tl.constexpr):
    """A layer's from phase 1 on, loaded in phase 0: no load of a weight waits for its address."""
    q_norm, k_norm = address(table, layer, 3, KIND), address(table, layer, 4, KIND)
    o, post_norm = address(table, layer, 5, KIND), address(table, layer, 6, KIND)
    gate_up, down = address(table, layer, 7, KIND), address(table, layer, 8, KIND)
    keys, values = address(table, layer, 9, KIND), address(table, layer, 10, KIND)
    return q_norm, k_norm, o, post_norm, gate_up, down, keys, values


@triton.jit
def persistent_kernel(
    residual,
    qkv,
    attended,
    activated,
    sums,
    stats,
    counters,
    table,
    block_table,
    context_lens,
    cos,
    sin,
    first_layer,
    last_layer,
    blocks,
    eps,
    scale,
    PROGRAMS: tl.constexpr,
    QKV: tl.constexpr,
    O: tl.constexpr,
    GATE_UP: tl.constexpr,
    DOWN: tl.constexpr,
    HEADS: tl.constexpr,
    BIAS: tl.constexpr,
    QK_NORM: tl.constexpr,
    SYNC: tl.constexpr,
    ONLY: tl.constexpr,
):
    """Layers first_layer to last_layer - 1, or of each only the phase ONLY, unless that is -1."""
    this_program = tl.program_id(0)
    kind: tl.constexpr = residual.dtype.element_ty
    half: tl.constexpr = HEADS[3] // 2
    items: tl.constexpr = HEADS[8]
    pair = tl.arange(0, half)
    position = tl.load(context_lens) - 1
    angle = tl.maximum(position, 0).to(tl.int64) * half + pair
    parts = (sums, stats, counters + HEAD_COUNTERS)
    passed = 0  # what the counter has at least when the phase before has ended
    norm = address(table, first_layer, 0, kind)
    weight = address(table, first_layer, 1, kind)
    for layer in range(first_layer, last_layer):
        # adds 0, which the compiler cannot know: what depends on the program is not computed once
        # for all layers and kept, which would spill
        program = this_program + (layer >> 20)
        if ONLY > 0:
            later = addresses_of(table, layer, kind)
        if ONLY < 0 or ONLY == 0:
            bias = address(table, layer, 2, kind) if BIAS else residual
            if SYNC:  # noqa: SIM102 (one of them is the compiler's)
                if layer > first_layer:
                    arrive(counters, SYNC)
            rows = hold(weight, bias, program, QKV, False, BIAS, PROGRAMS)
            scales = load_vector(norm, QKV[1], QKV[3], QKV[4])
            later = addresses_of(table, layer, kind)
            wait(counters, passed, SYNC)
            product(
                qkv, residual, weight, bias, rows, scales, eps, program,
                QKV, True, False, BIAS, PROGRAMS,
            )  # fmt: skip
            passed += PROGRAMS
        q_norm, k_norm, o, post_norm, gate_up, down, keys, values = later
        if ONLY < 0 or ONLY == 1:
            arrive(counters, SYNC)
            tile = first_keys(keys, values, block_table, blocks, program, HEADS)
            norms = ()
            if QK_NORM:
                norms = (
                    tl.load(q_norm + pair), tl.load(q_norm + half + pair),
                    tl.load(k_norm + pair), tl.load(k_norm + half + pair),
                )  # fmt: skip
            angles = (tl.load(cos + angle), tl.load(sin + angle))
            wait(counters, passed, SYNC)
            for i in tl.static_range(items):
                item = program + i * PROGRAMS
                if i > 0:
                    tile = first_keys(keys, values, block_table, blocks, item, HEADS)
                if item < HEADS[0] * HEADS[5]:
                    attention(
                        attended, keys, values, parts, qkv, block_table, position, angles, norms,
                        eps, scale, item, tile, HEADS, QK_NORM,
                    )  # fmt: skip
            passed += PROGRAMS
        if ONLY < 0 or ONLY == 2:
            arrive(counters, SYNC)
            rows = hold(o, residual, program, O, False, True, PROGRAMS)
            wait(counters, passed, SYNC)
            product(
                residual, attended, o, residual, rows, (), eps, program,
                O, False, False, True, PROGRAMS,
            )  # fmt: skip
            passed += PROGRAMS
        if ONLY < 0 or ONLY == 3:
            arrive(counters, SYNC)
            rows = hold(gate_up, residual, program, GATE_UP, True, False, PROGRAMS)
            scales = load_vector(post_norm, GATE_UP[1], GATE_UP[3], GATE_UP[4])
            wait(counters, passed, SYNC)
            product(
                activated, residual, gate_up, residual, rows, scales, eps, program,
                GATE_UP, True, True, False, PROGRAMS,
            )  # fmt: skip
            passed += PROGRAMS
        if ONLY < 0 or ONLY == 4:
            arrive(counters, SYNC)
            rows = hold(down, residual, program, DOWN, False, True, PROGRAMS)
            following = tl.minimum(layer + 1, last_layer - 1)
            norm = address(table, following, 0, kind)
            weight = address(table, following, 1, kind)
            wait(counters, passed, SYNC)
            product(
                residual, activated, down, residual, rows, (), eps, program,
                DOWN, False, False, True, PROGRAMS,
            )  # fmt: skip
            passed += PROGRAMS
    if SYNC:
        gone = tl.atomic_add(counters + LEFT, 1, sem="acq_rel", scope="gpu")
        if gone == PROGRAMS - 1:
            tl.store(counters, 0)
            tl.store(counters + LEFT, 0)
