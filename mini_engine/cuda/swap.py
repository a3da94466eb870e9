"""Preemption by swap: blocks of the KV cache out to pinned host memory and back.

In:  a cache, how many blocks host memory has room for, and batches with `swap_out` and `swap_in`
     (`engine/swap.py`). Out: the same contents in other blocks, before the step runs.

A block is one row in each of 2 x layers tensors, 32 KiB each for Qwen3-0.6B: too small to use the
link well. So its rows are gathered on the card first, as bytes, and pass the link in one copy.
Copies are on a stream of their own, which waits for the steps that wrote the blocks; then the
compute stream waits for it. The host waits for nothing.
"""

from __future__ import annotations

import torch

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.model import KVCache
from mini_engine.engine.batch import ScheduledBatch


class HostBlocks:
    """Pinned host memory for the blocks of one cache, and the stream that fills it."""

    def __init__(self, cache: KVCache, num_blocks: int, backend: GraphBackend) -> None:
        """With no blocks it takes no memory, and `copy` has nothing to do."""
        self.backend, self.stream = backend, backend.Stream()
        self.rows = [t.flatten(1).view(torch.int64) for t in (*cache.keys, *cache.values)]
        self.widths = [row.shape[1] for row in self.rows]
        pinned = backend.device.type == "cuda" and num_blocks > 0
        shape = (num_blocks, sum(self.widths))
        self.host = torch.empty(shape, dtype=torch.int64, pin_memory=pinned)

    def copy(self, batch: ScheduledBatch) -> None:
        """Queue every copy of the batch, those out first; later work on this stream waits."""
        if not (batch.swap_out or batch.swap_in):
            return
        compute = self.backend.current_stream()
        self.stream.wait_stream(compute)
        with self.backend.stream(self.stream):
            for block, place in batch.swap_out:
                gathered = torch.cat([row[block] for row in self.rows])
                self.host[place].copy_(gathered, non_blocking=True)
            for block, place in batch.swap_in:
                gathered = self.host[place].to(self.backend.device, non_blocking=True)
                # one launch for all tensors of the cache
                parts = list(torch.split(gathered, self.widths))
                torch._foreach_copy_([row[block] for row in self.rows], parts)
        compute.wait_stream(self.stream)
