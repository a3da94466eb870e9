"""From logits to tokens on the device: no host, no generator, the same inside a graph and outside.

In:  logits (R, V), and the number of tokens that each request has so far (R,).
Out: tokens (R,) int32. A draw (gumbel.py) depends on the logits, the request's `SamplingParams` and
     the number of its tokens: on no batch, no mode, no preemption.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf, log

import torch
from torch import Tensor

from mini_engine.cuda.gumbel import cutoffs_reference, scores_reference
from mini_engine.engine.sampling import GREEDY, SEEDS, SamplingParams

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
        floats = [
            [p.temperature for p in drawn],
            [p.top_p for p in drawn],
            [log(p.min_p) if p.min_p else -inf for p in drawn],
        ]
        # seeds as signed words: the same bits
        whole = [
            [min(p.top_k, SEEDS // 2 - 1) for p in drawn],
            [p.seed - SEEDS * (p.seed >= SEEDS // 2) for p in drawn],
        ]
        host = torch.empty(self._buffer.shape, dtype=torch.int32)
        host[:3].view(torch.float32).copy_(torch.tensor(floats, dtype=torch.float32))
        host[3:] = torch.tensor(whole, dtype=torch.int32)
        self._buffer.copy_(host)  # from pageable memory: the host waits until it has been read

    def __call__(self, logits: Tensor, context_lens: Tensor) -> Tensor:
        temperatures, top_ps, log_min_ps, top_ks, seeds = self.rows(len(logits))
        cutoffs = cutoffs_reference(logits, temperatures, top_ks, top_ps, log_min_ps)
        scores = scores_reference(logits, cutoffs, temperatures, seeds, context_lens)
        return scores.argmax(-1).to(torch.int32)

    def rows(self, count: int) -> tuple[Tensor, ...]:
        """Of the first rows: temperatures, top_ps, log_min_ps (float32), top_ks, seeds (int32)."""
        every = self.temperatures, self.top_ps, self.log_min_ps, self.top_ks, self.seeds
        return tuple(one[:count] for one in every)
