"""From logits to the partials of a draw: temperature, top-k, top-p and min-p without a sort.

    draw:  logits (R, V) -> partials (R, P) for pick.py, in place of the head's own; its first
           kernel finds the smallest logit of each row that may be drawn, its second one draws

In:  logits in any dtype; of each row what `SeededSampler` keeps; `context_lens`, the counter of the
     noise. What is computed, and why: cuda/gumbel.py, its reference.
Out: a greedy step ends in two launches (head, pick), a sampled one in four (head, cutoffs, draw,
     pick). A row without filters leaves the second at once; the fourth's noise takes many programs.

**The cutoff** of top-k is the largest logit c with (tokens from c on) >= k, that of top-p the
largest with (their mass) >= p · mass. Both sums fall as c rises, so a bisection finds it: each pass
reads the row once more, from L2, and keeps one half. Of 151,936 normal logits a filter's is found
within 23 passes (a test counts them), all by one program. How long that takes is not yet measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.gumbel import LARGEST, cutoffs_reference, scores_reference
from mini_engine.cuda.kernels.checks import check_shape
from mini_engine.cuda.kernels.launch import launch_options, pdl_release, pdl_wait, runs_triton
from mini_engine.cuda.kernels.pick import best_of, fill_partials, room_for_partials

CUTOFF_BLOCK, CUTOFF_WARPS = 8192, 32
DRAW_BLOCK, DRAW_WARPS = 1024, 4  # logits of a program
BELOW_ONE = tl.constexpr(LARGEST)
INFINITY = tl.constexpr(float("inf"))


@triton.jit
def mixed(words):
    """A hash of uint32 words, the same as cuda/gumbel.py's."""
    words = (words ^ (words >> 16)) * 0x7FEB352D
    words = (words ^ (words >> 15)) * 0x846CA68B
    return words ^ (words >> 16)


@triton.jit
def gumbel(words):
    """Standard Gumbel noise, float32. `log1p(-u)` by way of the rounding error of 1 - u (Kahan):
    log(1 - u) has it too, and the quotient of the two is smooth."""
    uniform = tl.minimum((words.to(tl.float32) + 0.5) * 2.3283064365386963e-10, BELOW_ONE)  # 2^-32
    rest = 1.0 - uniform
    taken = 1.0 - rest
    exact = taken == 0.0
    exponential = -tl.log(rest) * (uniform / tl.where(exact, 1.0, taken))
    return -tl.log(tl.where(exact, uniform, exponential))


@triton.jit
def tail(
    logits, bound, peak, temperature, V: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr
):
    """Of a row: weight of the logits >= bound, the smallest of these, the largest of the others.
    A logit weighs exp((logit - peak) / temperature) with MASS, else 1. -inf and NaN do not count.
    """
    # What each lane found so far; lanes are brought together once, after the whole row.
    weight = tl.zeros((BLOCK,), tl.float32)
    above = tl.full((BLOCK,), INFINITY, tl.float32)
    below = tl.full((BLOCK,), -INFINITY, tl.float32)
    for start in range(0, V, BLOCK):
        token = start + tl.arange(0, BLOCK)
        x = tl.load(logits + token, token < V, other=-INFINITY, cache_modifier=".cg").to(tl.float32)
        number = x > -INFINITY
        inside = number & (x >= bound)
        one = tl.exp((x - peak) / temperature) if MASS else 1.0
        weight += tl.where(inside, one, 0.0)
        above = tl.minimum(above, tl.where(inside, x, INFINITY))
        below = tl.maximum(below, tl.where(number & (x < bound), x, -INFINITY))
    return tl.sum(weight, 0), tl.min(above, 0), tl.max(below, 0)


@triton.jit
def bisect(
    logits, low, target, peak, temperature,
    V: tl.constexpr, BLOCK: tl.constexpr, MASS: tl.constexpr,
):  # fmt: skip
    """The largest logit from which on the row weighs `target` or more; `low` if none does."""
    high = peak
    while low < high:
        middle = 0.5 * low + 0.5 * high
        middle = tl.where(middle > low, middle, high)  # nothing lies between
        weight, above, below = tail(logits, middle, peak, temperature, V, BLOCK, MASS)
        # Both ends move to a logit of the row, never to a number between: so they meet exactly.
        enough = weight >= target
        low = tl.where(enough, above, low)
        high = tl.where(enough, high, below)
    return low


@triton.jit
def cutoff_kernel(
    cutoffs, logits, temperatures, top_ks, top_ps, log_min_ps,
    V: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program row."""
    pdl_release(PDL)
    pdl_wait(PDL)
    row = tl.program_id(0)
    logits += row * V
    temperature = tl.load(temperatures + row)
    top_k, top_p = tl.load(top_ks + row), tl.load(top_ps + row)
    log_min_p = tl.load(log_min_ps + row)
    cutoff = -INFINITY
    if (top_k > 0) | (top_p < 1.0) | (log_min_p > -INFINITY):
        # Both ends of the row, a pass each: min-p follows from them, and top-k lies between them.
        _, least, _ = tail(logits, -INFINITY, 0.0, 1.0, V, BLOCK, False)
        _, _, peak = tail(logits, INFINITY, 0.0, 1.0, V, BLOCK, False)
        cutoff = tl.maximum(least, peak + temperature * log_min_p)
        if top_k > 0:
            target = top_k.to(tl.float32)
            cutoff = bisect(logits, cutoff, target, peak, temperature, V, BLOCK, False)
        if top_p < 1.0:  # of what the other filters have left
            mass, _, _ = tail(logits, cutoff, peak, temperature, V, BLOCK, True)
            cutoff = bisect(logits, cutoff, top_p * mass, peak, temperature, V, BLOCK, True)
    tl.store(cutoffs + row, cutoff)


@triton.jit
def draw_kernel(
    values, indices, logits, cutoffs, temperatures, seeds, context_lens,
    V: tl.constexpr, BLOCK: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Program (row, part): the best score of BLOCK tokens."""
    pdl_release(PDL)
    pdl_wait(PDL)
    row, part = tl.program_id(0), tl.program_id(1)
    token = part * BLOCK + tl.arange(0, BLOCK)
    inside = token < V
    # Below the cutoff nothing may be drawn: such a token has no score.
    x = tl.load(logits + row * V + token, inside, other=0.0, cache_modifier=".cg").to(tl.float32)
    inside &= x >= tl.load(cutoffs + row, cache_modifier=".cg")
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        # One hash of seed and length a program, one of the token a lane: no state between steps.
        seed = tl.load(seeds + row).to(tl.uint32, bitcast=True)
        length = tl.load(context_lens + row, cache_modifier=".cg").to(tl.uint32, bitcast=True)
        stream = mixed(mixed(mixed(seed) ^ length))
        x += temperature * gumbel(mixed(stream ^ mixed(token.to(tl.uint32, bitcast=True))))
    value, index = best_of(x, token, inside)
    partial = row * tl.num_programs(1) + part
    tl.store(values + partial, value)
    tl.store(indices + partial, index)


def find_cutoffs(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, log_min_ps: Tensor,
    pdl: bool = False,
) -> Tensor:  # fmt: skip
    """The first kernel: cutoffs (R,) float32 of logits (R, V); the others (R,)."""
    cutoffs = logits.new_empty(len(logits), dtype=torch.float32)
    cutoff_kernel[(len(logits),)](
        cutoffs, logits, temperatures, top_ks, top_ps, log_min_ps, V=logits.shape[1],
        BLOCK=min(CUTOFF_BLOCK, triton.next_power_of_2(logits.shape[1])),
        num_warps=CUTOFF_WARPS, **launch_options(pdl, logits.device),
    )  # fmt: skip
    return cutoffs


@torch.library.custom_op("launch_bound::draw", mutates_args=("values", "indices"))
def draw(
    values: Tensor, indices: Tensor, logits: Tensor, context_lens: Tensor, temperatures: Tensor,
    top_ps: Tensor, log_min_ps: Tensor, top_ks: Tensor, seeds: Tensor, pdl: bool = False,
) -> None:  # fmt: skip
    """values float32 and indices int32, (R, `num_parts(V)`), of logits (R, V); the others (R,)."""
    count, vocab = logits.shape
    check_shape("values", values, (count, num_parts(vocab)))
    check_shape("indices", indices, (count, num_parts(vocab)))
    if not runs_triton(logits):
        cutoffs = cutoffs_reference(logits, temperatures, top_ks, top_ps, log_min_ps)
        scores = scores_reference(logits, cutoffs, temperatures, seeds, context_lens)
        fill_partials(values, indices, scores)
        return
    cutoffs = find_cutoffs(logits, temperatures, top_ks, top_ps, log_min_ps, pdl)
    draw_kernel[(count, num_parts(vocab))](
        values, indices, logits, cutoffs, temperatures, seeds, context_lens, V=vocab,
        BLOCK=DRAW_BLOCK, num_warps=DRAW_WARPS, **launch_options(pdl, logits.device),
    )  # fmt: skip


def drawn_partials(
    logits: Tensor, context_lens: Tensor, rows: Sequence[Tensor], pdl: bool
) -> tuple[Tensor, Tensor]:
    """values and indices of a draw from each row, for pick.py; rows: `SeededSampler.rows`."""
    values, indices = room_for_partials(len(logits), num_parts(logits.shape[1]), logits)
    draw(values, indices, logits, context_lens, *rows, pdl)
    return values, indices


def num_parts(vocab_size: int) -> int:
    """Programs of `draw` for a row, and so its partials."""
    return -(-vocab_size // DRAW_BLOCK)
