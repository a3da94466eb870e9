"""The static inputs of a step: int32 buffers on the device, filled by one copy from the host.

All arrays share one flat buffer, on the device and in pinned memory. The block table comes last, so
one copy of the buffer's front fills a step of any size. A captured graph may hold their addresses.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mini_engine.engine import step_arrays
from mini_engine.engine.batch import ScheduledBatch, SchedulerLimits

StepInputs = step_arrays.StepInputs[Tensor]


class StaticInputs:
    """The buffers for steps of up to `max_tokens` tokens of up to `max_num_seqs` requests."""

    def __init__(self, limits: SchedulerLimits, max_tokens: int, device: torch.device) -> None:
        self.limits = limits
        blocks = step_arrays.max_blocks(limits)
        self._shapes = step_arrays.step_shapes(
            max_tokens, limits.max_num_seqs, blocks, limits.decode_query_len
        )
        size = sum(prod(shape) for shape in self._shapes.values())
        on_gpu = device.type == "cuda"
        self._device = torch.zeros(size, dtype=torch.int32, device=device)
        self._staging = torch.zeros(size, dtype=torch.int32, pin_memory=on_gpu)
        self._copied = torch.cuda.Event() if on_gpu else None  # type: ignore[no-untyped-call]
        self._host = {name: view.numpy() for name, view in self._views(self._staging).items()}
        self._whole = StepInputs(**self._views(self._device))

    def view(self, num_tokens: int, num_reqs: int) -> StepInputs:
        """The buffers, cut to this size, which they have: always the same addresses."""
        return self._whole.rows(num_tokens, num_reqs)

    def clear(self) -> None:
        """Zeros everywhere: what a warm-up may read."""
        self._device.zero_()

    def fill(self, batch: ScheduledBatch, num_tokens: int, num_reqs: int) -> StepInputs:
        """Put the batch into the buffers, padded with zeros to this size; returns their view. The
        copy is queued; the host does not wait for it. ValueError for a batch that is larger."""
        step = self.view(num_tokens, num_reqs)
        if self._copied:
            self._copied.synchronize()  # the copy before this one may still be reading
        self._write(step_arrays.step_arrays(batch, self.limits), step)
        if self._copied:
            self._copied.record()
        return step

    def _write(self, arrays: Mapping[str, NDArray[np.int32]], step: StepInputs) -> None:
        """Put each array into the first rows of the tensor of its name in `step`, and zeros into
        the rows after them. The tensors stay where they are: graphs hold their addresses.

        The host's side comes first (`self._host[name]` is a view of `self._staging`). Then one copy
        of its front, as far as `step` reaches, is queued to `self._device`; nobody waits for it.
        """
        padded = vars(step)
        for name, array in arrays.items():
            rows = self._host[name][: len(padded[name])]
            rows[: len(array)] = array
            rows[len(array) :] = 0
        table = step.block_table  # the last of the buffer
        front = table.storage_offset() + table.numel()
        self._device[:front].copy_(self._staging[:front], non_blocking=True)

    def _views(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, [prod(shape) for shape in self._shapes.values()])
        named = zip(self._shapes.items(), parts, strict=True)
        return {name: part.view(shape) for (name, shape), part in named}
