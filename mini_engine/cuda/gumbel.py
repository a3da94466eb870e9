"""What the sampling kernels compute, in PyTorch: the plain model runs this, with no Triton at all.

In:  logits (R, V); of each row a temperature, filters, a seed, and the number of its tokens so far.
Out: noise, and the cutoff below which no logit is drawn: min-p, top-k and top-p each keep the
     tokens from some logit on.

**The noise** is a hash of (seed, tokens so far, token id): a counter-based generator (Salmon et al.
2011, "Parallel random numbers: as easy as 1, 2, 3") has no state that a graph could bake in or a
preemption could lose. Its counter is `context_lens`, a tensor that each step moves on.

**The Gumbel-max trick**: the largest of logit + temperature · noise is a draw from softmax(logit /
temperature), if the noise is standard Gumbel (Maddison et al. 2014, arXiv 1411.0030, section 2). So
a draw is an argmax, and temperature 0 is greedy.
"""

from __future__ import annotations

import torch
from torch import Tensor

WORD = 0xFFFFFFFF
LARGEST = 1 - 2.0**-24  # of a float32 below 1


def mixed(words: Tensor) -> Tensor:
    """A hash of 32-bit words in int64: "lowbias32" of https://nullprogram.com/blog/2018/07/31/."""
    words = words ^ (words >> 16)
    words = (words * 0x7FEB352D) & WORD
    words = words ^ (words >> 15)
    # 0x846CA68B as a negative number: the low 32 bits are the same and int64 does not overflow.
    words = (words * (0x846CA68B - 2**32)) & WORD
    return words ^ (words >> 16)


def noise_words(seeds: Tensor, context_lens: Tensor, vocab_size: int) -> Tensor:
    """(R, V) words of 32 bits. seeds (R,) int32, read as unsigned; context_lens (R,). Rows are
    mixed twice: mixed once, a row could equal a token, whose word were 0, the largest noise."""
    tokens = mixed(torch.arange(vocab_size, device=seeds.device))
    rows = mixed(mixed(mixed(seeds.long() & WORD) ^ context_lens.long()))
    return mixed(rows[:, None] ^ tokens)


def gumbel(words: Tensor) -> Tensor:
    """Standard Gumbel noise, float32, of uniform 32-bit words held in int64: -log(E), where -log(1
    - u) is E, fine-grained near 0. So the largest noise, which decides, varies in 32 bits."""
    uniform = (words.float() + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-uniform.clamp(max=LARGEST)))


def cutoffs_reference(
    logits: Tensor, temperatures: Tensor, top_ks: Tensor, top_ps: Tensor, log_min_ps: Tensor
) -> Tensor:
    """The smallest logit of each row that may be drawn, (R,) float32. logits (R, V); the rest (R,):
    `log_min_ps` is the logarithm of min_p, -inf for none. A row of temperature 0 has no filters."""
    ordered = logits.float().nan_to_num(nan=-torch.inf, posinf=torch.inf, neginf=-torch.inf)
    ordered = ordered.sort(dim=-1, descending=True).values
    vocab = ordered.shape[1]
    warmth = torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    count = torch.where(top_ks > 0, top_ks, vocab).clamp(max=vocab).long()
    peak, last = ordered[:, :1], ordered.gather(1, count[:, None] - 1)
    kept = ordered >= torch.maximum(last, peak + warmth * log_min_ps[:, None])
    # float64: a sum over 151,936 tokens
    mass = torch.exp((ordered - peak).double() / warmth) * kept
    more_likely = mass.cumsum(-1) - mass
    kept &= (more_likely < top_ps[:, None] * mass.sum(-1, keepdim=True)) | (top_ps[:, None] >= 1)
    return torch.where(kept, ordered, torch.inf).amin(-1)


def scores_reference(
    logits: Tensor, cutoffs: Tensor, temperatures: Tensor, seeds: Tensor, context_lens: Tensor
) -> Tensor:
    """What the draw is the argmax of, (R, V) float32; -inf below a row's cutoff."""
    noise = gumbel(noise_words(seeds, context_lens, logits.shape[1]))
    scores = logits.float() + temperatures[:, None] * noise
    return torch.where(logits >= cutoffs[:, None], scores, -torch.inf)
