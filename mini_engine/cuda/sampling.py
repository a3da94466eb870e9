"""From logits to tokens on the device: no host, no generator, the same inside a graph and outside.

In:  logits (R, V), and the number of tokens that each request has so far (R,).
Out: tokens (R,) int32. A draw depends on the logits, the request's `SamplingParams` and the number
     of its tokens: on no batch, no mode, no preemption.

**The noise** is a hash of (seed, tokens so far, token id): a counter-based generator (Salmon et al.
2011, "Parallel random numbers: as easy as 1, 2, 3") has no state that a graph could bake in or a
preemption could lose. Its counter is `context_lens`, a tensor that each step moves on.

**The Gumbel-max trick**: the largest of logit + temperature · noise is a draw from softmax(logit /
temperature), if the noise is standard Gumbel (Maddison et al. 2014, arXiv 1411.0030, section 2). So
a draw is an argmax, and temperature 0 is greedy. No logit is drawn below the row's cutoff: min-p,
top-k and top-p each keep the tokens from some logit on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log

import torch
from torch import Tensor

from mini_engine.engine.sampling import GREEDY, SEEDS, SamplingParams

WORD = 0xFFFFFFFF
LARGEST = 1 - 2.0**-24  # of a float32 below 1
Sampler = Callable[[Tensor, Tensor], Tensor]  # logits (R, V), context_lens (R,): tokens (R,) int32


def greedy(logits: Tensor, context_lens: Tensor) -> Tensor:  # noqa: ARG001 (a Sampler)
    """The largest logit of each row."""
    return logits.argmax(-1).to(torch.int32)


class SeededSampler:
    """The parameters of each row that is sampled, (max_rows,) each, in static buffers: graphs hold
    their addresses. Rows are greedy until `set_rows`."""

    def __init__(self, max_rows: int, device: torch.device) -> None:
        # One buffer, so that one copy from the host fills all five.
        self._buffer = torch.empty(5, max_rows, dtype=torch.int32, device=device)
        self.temperatures, self.top_ps, self.log_min_ps = self._buffer[:3].view(torch.float32)
        self.top_ks, self.seeds = self._buffer[3:]
        self._rows: list[SamplingParams] | None = None
        self.set_rows([])

    def set_rows(self, params: Sequence[SamplingParams]) -> None:
        """Set the first rows, the others to greedy. The same requests as before cost nothing."""
        rows = [*params, *[GREEDY] * (self._buffer.shape[1] - len(params))]
        if rows == self._rows:
            return
        self._rows = rows
        drawn = [p if p.temperature else GREEDY for p in rows]  # nothing to filter in a greedy row
        floats = [(p.temperature, p.top_p, log(p.min_p) if p.min_p else -inf) for p in drawn]
        # seeds as signed words: the same bits
        whole = [(min(p.top_k, SEEDS // 2 - 1), p.seed - SEEDS * (p.seed >= SEEDS // 2))
                 for p in drawn]  # fmt: skip
        host = torch.empty(self._buffer.shape, dtype=torch.int32)
        host[:3].view(torch.float32).copy_(torch.tensor(floats, dtype=torch.float32).t())
        host[3:] = torch.tensor(whole, dtype=torch.int32).t()
        self._buffer.copy_(host)  # from pageable memory: the host waits until it has been read

    def __call__(self, logits: Tensor, context_lens: Tensor) -> Tensor:
        every = self.temperatures, self.top_ks, self.top_ps, self.log_min_ps, self.seeds
        temperatures, *filters, seeds = (one[: len(logits)] for one in every)
        noise = gumbel(noise_words(seeds, context_lens, logits.shape[1]))
        scores = logits.float() + temperatures[:, None] * noise
        allowed = logits >= cutoffs_of(logits, temperatures, *filters)[:, None]
        return torch.where(allowed, scores, -torch.inf).argmax(-1).to(torch.int32)


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


def cutoffs_of(
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
