"""Preemption by swap on the simulated GPU: blocks of the KV cache out to host memory and back.

In:  a cache, and batches with `swap_out` and `swap_in` (`engine/swap.py`).
Out: the same contents in other blocks, and the time that it took.

A copy of one block, all layers together, is one call (`copy_us`), and its bytes pass the card's
link (`link_gb_s`). The stream is in order, so whatever was launched before has run when a block
leaves, and whatever is launched later finds it back.
"""

from __future__ import annotations

import numpy as np

from mini_engine.engine.batch import ScheduledBatch
from mini_engine.sim.device import Device
from mini_engine.sim.model import KVCache


class HostBlocks:
    """Pinned host memory for the blocks of one cache."""

    def __init__(self, device: Device, cache: KVCache) -> None:
        self.device, self.tensors = device, (*cache.keys, *cache.values)
        self.block_bytes = sum(tensor.nbytes // len(tensor) for tensor in self.tensors)
        self._held: dict[int, list[np.ndarray]] = {}  # of a host block: a row of each tensor

    def copy(self, batch: ScheduledBatch) -> None:
        """Every copy of the batch, those out first."""
        for block, host in batch.swap_out:
            self._transfer("swap out")
            if self.device.compute:
                self._held[host] = [tensor.array[block].copy() for tensor in self.tensors]
        for block, host in batch.swap_in:
            self._transfer("swap in")
            if self.device.compute:
                for tensor, row in zip(self.tensors, self._held.pop(host), strict=True):
                    tensor.array[block] = row

    def _transfer(self, name: str) -> None:
        """The time of one block."""
        spec = self.device.spec
        link_us = self.block_bytes / (spec.link_gb_s * 1e3)
        self.device.issue(name, spec.copy_us, "copy", [(name, link_us)])
