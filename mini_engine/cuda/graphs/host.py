"""The emulator's host memory: what a copy to the "device" comes from, pinned or pageable.

In: nothing but where `GraphBackend.host_zeros` makes one. Out: tensors that the emulator can tell
from the device's. All others stand for tensors on the GPU.

A copy from *pinned* memory with `non_blocking=True` becomes a node of the graph, which reads the
address at each replay; without, PyTorch waits for the stream, which a capture does not permit. A
copy from *pageable* memory may wait, too, and PyTorch refuses it in a capture; until January 2026
it captured it, and replays read memory that nobody kept alive (pytorch PR 172156).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from mini_engine.cuda.graphs.threads import captured_here, unsafe

NOT_PINNED = (
    'needs pinned memory on the host (PyTorch: "Cannot copy between CPU and CUDA tensors during '
    'CUDA graph capture unless the CPU tensor is pinned"): take host_zeros(..., pinned=True)'
)


class HostTensor(Tensor):
    """A tensor of the host. Views of it, and what is computed of it, are the host's, too."""

    @classmethod
    def __torch_function__(
        cls,
        func: Any,
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if of_the_host(args, kwargs):
            with _disable_current_modes():  # it runs at once, captured or not
                return super().__torch_function__(func, types, args, kwargs)  # type: ignore[no-untyped-call]
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.copy_ and not captured_here():  # there, the recorder has its say
                if any(isinstance(x, PageableTensor) for x in args):
                    unsafe("a copy from or to pageable memory")
                elif not kwargs.get("non_blocking"):
                    unsafe("a copy that waits for its stream")
            return func(*args, **kwargs)


class PinnedTensor(HostTensor):
    """Page-locked: the device can read it while the CPU does something else."""


class PageableTensor(HostTensor):
    """Ordinary memory."""


def of_the_host(*values: Any) -> bool:
    """Are all tensors in there the host's?"""
    tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
    return all(isinstance(x, HostTensor) for x in tensors)


def crosses(target: Tensor, source: Tensor) -> bool:
    """Is a copy of `source` into `target` one between host and device?"""
    return isinstance(target, HostTensor) != isinstance(source, HostTensor)
