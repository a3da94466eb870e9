"""What a loader does beside a capture: it allocates, and copies from memory of the host.

In:  a `GraphBackend`. Out: the same errors on an emulated device as on a GPU.

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

from mini_engine.cuda.graphs.backend import GraphBackend
from mini_engine.cuda.graphs.tape import HostTensor, underway, unsafe


class PinnedTensor(HostTensor):
    """Page-locked: the device can read it while the CPU does something else. Views of it, and what
    is computed of it, are the host's, too."""

    pinned = True

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
        captured_here = any(recorder.listening() for recorder in underway)
        with torch._C.DisableTorchFunctionSubclass():
            if func is Tensor.copy_ and not captured_here:  # there, the recorder has its say
                if not all(x.pinned for x in args if isinstance(x, HostTensor)):
                    unsafe("a copy from or to pageable memory")
                elif not kwargs.get("non_blocking"):
                    unsafe("a copy that waits for its stream")
            return func(*args, **kwargs)


class PageableTensor(PinnedTensor):
    """Ordinary memory."""

    pinned = False


def of_the_host(*values: Any) -> bool:
    """Are all tensors in there the host's?"""
    tensors = [x for x in tree_leaves(values) if isinstance(x, Tensor)]
    return all(isinstance(x, HostTensor) for x in tensors)


def host_zeros(graphs: GraphBackend, *shape: int, pinned: bool) -> Tensor:
    """A float32 tensor in host memory. An emulated device's is marked, to be told from others."""
    if not graphs.emulated:
        return torch.zeros(shape, pin_memory=pinned)
    return torch.zeros(shape).as_subclass(PinnedTensor if pinned else PageableTensor)


def allocate(graphs: GraphBackend, size: int) -> int:
    """The address of `size` bytes: of the graph's pool while this stream is capturing, else by
    `cudaMalloc` (PyTorch asks its cache first, which `torch.cuda.graph` empties before a capture).
    """
    if not graphs.emulated:
        return int(torch.cuda.caching_allocator_alloc(size))
    if not graphs.is_current_stream_capturing():
        unsafe(f"cudaMalloc of {size:,} bytes")
    memory = torch.empty(size, dtype=torch.uint8)
    _allocated[memory.data_ptr()] = memory
    return memory.data_ptr()


def give_back(graphs: GraphBackend, address: int) -> None:
    """What `allocate` gave."""
    if graphs.emulated:
        del _allocated[address]
    else:
        torch.cuda.caching_allocator_delete(address)  # type: ignore[no-untyped-call]


_allocated: dict[int, Tensor] = {}
