"""Preemption by swap: blocks of the KV cache out to pinned host memory and back.

In:  a cache, how many blocks host memory has room for, and batches with `swap_out` and `swap_in`
     (`engine/swap.py`). Out: the same contents in other blocks, before the step runs.

A block of the cache is one row in each of 2 x layers tensors, 32 KiB each for Qwen3-0.6B: too small
to use the link well. So the rows of a block are gathered side by side on the card first, and a
block passes the link in one copy. Each way, n blocks take n copies, and 2 x layers launches for
every `STAGED` of them. K and V are moved as bytes, whatever their dtype.

All of it is on a stream of its own, which first waits for what the compute stream was given before:
the steps that wrote the blocks. Then the compute stream waits for the copies: a step may write into
the blocks that they freed, and reads those that they filled. The host waits for nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.model import KVCache
from mini_engine.engine.batch import ScheduledBatch

STAGED = 32  # blocks gathered at once: 59 MB of the card for Qwen3-0.6B and blocks of 16

Pairs = Sequence[tuple[int, int]]  # (block of the cache, host block)


class HostBlocks:
    """Pinned host memory for the blocks of one cache, and the stream that fills it."""

    def __init__(self, cache: KVCache, num_blocks: int, backend: GraphBackend) -> None:
        """With no blocks it takes no memory, and `copy` has nothing to do."""
        self.backend, self.stream = backend, backend.Stream()
        self.rows = [t.flatten(1).view(torch.int64) for t in (*cache.keys, *cache.values)]
        self.widths = [row.shape[1] for row in self.rows]
        words, staged = sum(self.widths), min(STAGED, num_blocks)
        pinned = backend.device.type == "cuda" and num_blocks > 0
        self.host = torch.empty((num_blocks, words), dtype=torch.int64, pin_memory=pinned)
        self.staging = torch.empty((staged, words), dtype=torch.int64, device=backend.device)

    def copy(self, batch: ScheduledBatch) -> None:
        """Queue every copy of the batch, those out first; later work on this stream waits."""
        if not (batch.swap_out or batch.swap_in):
            return
        compute = self.backend.current_stream()
        self.stream.wait_stream(compute)
        with self.backend.stream(self.stream):
            for at in range(0, len(batch.swap_out), STAGED):
                self._out(batch.swap_out[at : at + STAGED])
            for at in range(0, len(batch.swap_in), STAGED):
                self._in(batch.swap_in[at : at + STAGED])
        compute.wait_stream(self.stream)

    def _out(self, pairs: Pairs) -> None:
        blocks, parts = self._staged(pairs)
        for row, part in zip(self.rows, parts, strict=True):
            torch.index_select(row, 0, blocks, out=part)
        for staged, (_, host) in zip(self.staging, pairs, strict=False):
            self.host[host].copy_(staged, non_blocking=True)

    def _in(self, pairs: Pairs) -> None:
        blocks, parts = self._staged(pairs)
        for staged, (_, host) in zip(self.staging, pairs, strict=False):
            staged.copy_(self.host[host], non_blocking=True)
        for row, part in zip(self.rows, parts, strict=True):
            row.index_copy_(0, blocks, part)

    def _staged(self, pairs: Pairs) -> tuple[Tensor, tuple[Tensor, ...]]:
        """The blocks of the cache, and their places in the staging area, tensor by tensor."""
        # From pinned memory, or the host would wait until the copy of these few numbers is done.
        index = torch.tensor([block for block, _ in pairs], pin_memory=self.host.is_pinned())
        blocks = index.to(self.backend.device, non_blocking=True)
        return blocks, torch.split(self.staging[: len(pairs)], self.widths, dim=1)
