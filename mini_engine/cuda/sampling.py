"""From logits to tokens on the device: no host, no generator, the same inside a graph and outside.

In:  logits (R, V), and the number of tokens that each request has so far (R,).
Out: tokens (R,) int32.

`greedy` takes the largest logit. `TemperatureSampler` draws from softmax(logits / temperature) by
the Gumbel-max trick: the largest of logits + temperature × Gumbel noise is such a draw (Gumbel
1954; Maddison et al. 2014, arXiv 1411.0030, section 2). Its noise is a hash of (seed of the
request, tokens so far, token id) and of nothing else, so a request gets the same text in any batch,
in any mode, and again after a preemption.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import Protocol

import torch
from torch import Tensor

WORD, SIGN = 0xFFFFFFFF, 0x80000000


class Sampler(Protocol):
    """A way to choose the next token of each request."""

    def __call__(self, logits: Tensor, context_lens: Tensor) -> Tensor:
        """logits (R, V), context_lens (R,) int32. Returns (R,) int32."""
        ...


def greedy(logits: Tensor, context_lens: Tensor) -> Tensor:  # noqa: ARG001 (a Sampler)
    """The largest logit of each row."""
    return logits.argmax(-1).to(torch.int32)


class TemperatureSampler:
    """Each row of a batch has a temperature and a seed, in static buffers that graphs may hold.

    `temperatures` (max_num_seqs,) float32 and `seeds` (max_num_seqs,) int32. Temperature 0 is
    greedy.
    """

    def __init__(self, max_num_seqs: int, vocab_size: int, device: torch.device) -> None:
        self.temperatures = torch.zeros(max_num_seqs, device=device)
        self.seeds = torch.zeros(max_num_seqs, dtype=torch.int32, device=device)
        self._token_hash = _mixed(torch.arange(vocab_size, device=device))  # (V,)

    def set_rows(self, temperatures: Sequence[float], seeds: Sequence[int]) -> None:
        """Set the first rows; call it whenever requests move to other rows.

        Raises ValueError for a temperature that is negative or not finite.
        """
        for temperature in temperatures:
            if not 0 <= temperature < inf:
                raise ValueError(f"temperature is {temperature}: give 0 (greedy) or more, as 0.8")
        words = [(seed & WORD) - (seed & SIGN) * 2 for seed in seeds]  # the low 32 bits, signed
        self.temperatures[: len(temperatures)] = torch.tensor(temperatures, dtype=torch.float32)
        self.seeds[: len(words)] = torch.tensor(words, dtype=torch.int32)

    def __call__(self, logits: Tensor, context_lens: Tensor) -> Tensor:
        rows = len(logits)
        row_hash = _mixed(_mixed(self.seeds[:rows].long() & WORD) ^ context_lens.long())
        noise = gumbel(_mixed(row_hash[:, None] ^ self._token_hash))
        scores = logits.float() + self.temperatures[:rows, None] * noise
        return scores.argmax(-1).to(torch.int32)


def gumbel(bits: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, from uniform 32-bit words held in int64.

    -log(E) with E exponential. E is made as -log(1 - u), which is fine-grained near 0: so the
    largest noise, which decides, varies in 32 bits and not in the 24 of a float near 1.
    """
    uniform = (bits.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform.clamp(max=1 - 2.0**-24)))


def _mixed(words: Tensor) -> Tensor:
    """A hash of 32-bit words in int64: "lowbias32" of https://nullprogram.com/blog/2018/07/31/."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & WORD
    words = words ^ (words >> 15)
    # 0x846CA68B as a negative number: the low 32 bits are the same and int64 does not overflow.
    words = (words * (0x846CA68B - 2**32)) & WORD
    return words ^ (words >> 16)
