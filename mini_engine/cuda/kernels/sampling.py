"""Sampling as an argmax: Gumbel noise from a counter, so that a graph can sample.

    greedy:       token = argmax_i logit_i                       (of equals, the lowest index)
    temperature:  token = argmax_i logit_i / T + g_i,  g_i = -log(-log u_i)

The second draws from softmax(logit / T): the Gumbel-max trick (Maddison et al. 2014, arXiv
1411.0030, section 2). T = 0 means greedy, so one batch may hold both.

u_i comes from Philox 4x32-10 (Salmon et al., SC 2011, "Parallel random numbers: as easy as 1, 2,
3"), a function of (seed, i, position) without a state: a replay of a graph draws anew because the
position has moved on, and a row draws the same numbers whatever batch it is in.

In: scores of some tokens, with their indices in the vocabulary. Out: the pieces that head.py and
pick.py put into their kernels, and the same in numpy and PyTorch.
"""

from __future__ import annotations

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from mini_engine.cuda.kernels.launch import check_shape


@triton.jit
def gumbel(seed, index, position):
    """One draw of Gumbel noise for each index of the vocabulary, float32."""
    zero = index * 0
    bits, _, _, _ = tl.philox(seed, index, zero + position, zero, zero)
    uniform = ((bits >> 9).to(tl.float32) + 0.5) * (1.0 / 8388608)  # 23 bits: never 0, never 1
    return -tl.log(-tl.log(uniform))


@triton.jit
def noisy(scores, index, temperature, seed, position):
    """What the argmax is taken of: the scores themselves where the temperature is 0."""
    warm = temperature > 0.0
    sampled = scores / tl.where(warm, temperature, 1.0) + gumbel(seed, index, position)
    return tl.where(warm, sampled, scores)


@triton.jit
def best_of(scores, index, inside):
    """(largest score, the lowest index that has it). NaN never wins; no number: (-inf, 0)."""
    scores = tl.where(inside & (scores == scores), scores, float("-inf"))
    value = tl.max(scores, axis=0)
    found = tl.min(tl.where(scores == value, index, 2147483647), axis=0)
    return value, tl.where(value > float("-inf"), found, 0)


# ---------------------------------------------------------------- the same in PyTorch


def sampling_reference(
    logits: Tensor,
    temperatures: Tensor | None,
    seeds: Tensor | None,
    positions: Tensor | None,
) -> Tensor:
    """(M, V) float32: logits with the noise of each row, of which the argmax is the token."""
    scores = logits.float()
    if temperatures is None or seeds is None or positions is None:
        return scores
    noise = torch.stack(
        [
            gumbel_reference(int(seed), int(position), logits.shape[1])
            for seed, position in zip(seeds.tolist(), positions.tolist(), strict=True)
        ]
    ).to(scores.device)
    warm = (temperatures > 0).unsqueeze(1)
    divisor = torch.where(warm, temperatures.unsqueeze(1), 1.0)
    return torch.where(warm, scores / divisor + noise, scores)


def gumbel_reference(seed: int, position: int, vocab_size: int) -> Tensor:
    """The noise of `gumbel` for every index of the vocabulary, float32."""
    counter = np.zeros((4, vocab_size), np.uint32)
    counter[0], counter[1] = np.arange(vocab_size), position
    uniform = ((philox(seed, counter)[0] >> 9).astype(np.float32) + np.float32(0.5)) / 2**23
    return torch.from_numpy(-np.log(-np.log(uniform)))


def philox(seed: int, counter: np.ndarray) -> np.ndarray:
    """Philox 4x32-10: counter (4, n) uint32 -> random bits (4, n) uint32."""
    low_bits = np.uint64(0xFFFFFFFF)
    key = [seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF]
    c0, c1, c2, c3 = counter.astype(np.uint64)
    for _ in range(10):
        a, b = c0 * np.uint64(0xD2511F53), c2 * np.uint64(0xCD9E8D57)
        c0, c1, c2, c3 = (
            (b >> np.uint64(32)) ^ c1 ^ np.uint64(key[0]),
            b & low_bits,
            (a >> np.uint64(32)) ^ c3 ^ np.uint64(key[1]),
            a & low_bits,
        )
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return np.stack([c0, c1, c2, c3]).astype(np.uint32)


def check_sampling(
    num_rows: int, temperatures: Tensor | None, seeds: Tensor | None, positions: Tensor | None
) -> bool:
    """Whether to sample. Raises ValueError unless all three are given, or none."""
    given = (("temperatures", temperatures), ("seeds", seeds), ("positions", positions))
    if all(tensor is None for _, tensor in given):
        return False
    for name, tensor in given:
        if tensor is None:
            raise ValueError(
                f"{name} is None: sampling needs temperatures, seeds and positions, "
                "greedy decoding none of them"
            )
        check_shape(name, tensor, (num_rows,))
    return True
