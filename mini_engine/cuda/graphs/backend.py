"""One way to capture and replay on any device: real CUDA graphs, or emulated ones.

Running out of memory raises `torch.OutOfMemoryError` on both; a driver that has no room for a
graph's nodes raises a RuntimeError. After either the pool can be used again. A capture that CUDA
itself invalidated has spoiled its pool: take a new handle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, fields
from types import ModuleType
from typing import Any, ClassVar, TypeAlias

import torch

from mini_engine.cuda.graphs import emulator
from mini_engine.cuda.graphs.arena import GraphPool

# The emulator has the methods of `torch.cuda` that we use and no others: its types stand for both.
Graph: TypeAlias = emulator.CUDAGraph
Stream: TypeAlias = emulator.Stream
PoolHandle: TypeAlias = Any  # an opaque token: two numbers on a GPU, a `GraphPool` on a CPU


@dataclass(frozen=True)
class GraphBackend:
    """What capture and replay need of `torch.cuda`, under its names."""

    device: torch.device
    emulated: bool  # times measured on it say nothing about a GPU
    # (graph, pool=..., stream=..., capture_error_mode=...)
    graph: Callable[..., AbstractContextManager[None]]
    # from here on as they are in `torch.cuda`
    CUDAGraph: type[emulator.CUDAGraph]
    graph_pool_handle: Callable[[], PoolHandle]
    Stream: type[emulator.Stream]
    Event: type[emulator.Event]
    stream: Callable[[emulator.Stream], AbstractContextManager[None]]
    current_stream: Callable[[], emulator.Stream]
    synchronize: Callable[[], None]
    is_current_stream_capturing: Callable[[], bool]
    mem_get_info: Callable[[], tuple[int, int]]  # (free, total) bytes

    # Graphs whose capture failed. PyTorch's allocator, one for the whole process, may go on asking
    # such a graph (the filter that `CUDAGraph::capture_begin` hands to `beginAllocateToPool` points
    # to it; pytorch/pytorch PR 180395 mends it), so they are never freed.
    failed: ClassVar[list[Graph]] = []

    def pool_bytes(self, pool: PoolHandle) -> int:
        """Bytes that the pool holds, used or not."""
        if isinstance(pool, GraphPool):
            return pool.reserved_bytes
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(pool))


def graphs_for(device: torch.device | str) -> GraphBackend:
    """The graphs of `device`: "cuda", the current one, or "cpu" for emulated ones. Raises
    ValueError for "cuda" where no GPU can be used."""
    device = torch.device(device)
    if device.type == "cpu":
        return _backend_of(device, emulator)
    if reason := why_no_gpu():
        raise ValueError(f"no graphs on {device}: {reason}; use cpu")
    return _backend_of(device, torch.cuda)


def why_no_gpu() -> str | None:
    """Why PyTorch can run nothing on a GPU here, in one line; None where it can."""
    if not torch.cuda.is_available():
        return "PyTorch finds no CUDA GPU here"
    # "sm_75", "sm_90a", "compute_120": what this build has kernels for
    built = [int("".join(filter(str.isdigit, arch))) for arch in torch.cuda.get_arch_list()]
    major, minor = torch.cuda.get_device_capability()
    if built and 10 * major + minor < min(built):
        name = torch.cuda.get_device_name()
        return f"{name} is sm_{major}{minor}, and this PyTorch needs sm_{min(built)} or newer"
    return None


def why_no_bf16(backend: GraphBackend) -> str | None:
    """Why the device cannot compute in bf16, in one line; None where it can. A CPU can, slowly."""
    if backend.emulated or torch.cuda.is_bf16_supported(including_emulation=False):
        return None
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()} (sm_{major}{minor}) has no bf16, which came with sm_80"


def measured_dtype(backend: GraphBackend) -> torch.dtype:
    """bf16, and fp16 on a GPU that has no bf16 (a T4): a byte is a byte."""
    return torch.float16 if why_no_bf16(backend) else torch.bfloat16


def free_bytes(backend: GraphBackend) -> int:
    """What can still be allocated: the device's free memory, and what PyTorch's cache holds."""
    free, _ = backend.mem_get_info()
    if backend.emulated:
        return free
    return free + torch.cuda.memory_reserved() - torch.cuda.memory_allocated()


@contextmanager
def graph_with_workspaces(cuda_graph: torch.cuda.CUDAGraph, **options: Any) -> Iterator[None]:
    """`torch.cuda.graph`, in which products of cuBLAS take their scratch from the graph's pool. A
    captured product remembers the address of its workspace. Whoever clears workspaces frees what
    graphs still write to: another graph's `reset` in torch 2.13, Inductor's `cudagraph_trees` in
    any version (pytorch issue 193402)."""
    # Without a workspace, the first captured product allocates one, and the pool is where a capture
    # allocates. The workspace goes after the capture, too: eager products must not write there.
    clear_workspaces()
    try:
        with torch.cuda.graph(cuda_graph, **options):
            yield
    finally:
        clear_workspaces()


def clear_workspaces() -> None:
    """Free the scratch memory of cuBLAS on all streams. The next product allocates it anew."""
    torch._C._cuda_clearCublasWorkspaces()


def _backend_of(device: torch.device, cuda: ModuleType) -> GraphBackend:
    """`cuda` is `torch.cuda`, or the emulator under the same names."""
    emulated = cuda is emulator
    graph = emulator.graph if emulated else graph_with_workspaces  # which a CPU's products lack
    names = [field.name for field in fields(GraphBackend)][3:]
    return GraphBackend(device, emulated, graph, **{name: getattr(cuda, name) for name in names})
