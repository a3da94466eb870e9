"""One way to capture and replay, whatever the device: the real graphs or the emulated ones.

In: a device. Out: a `GraphBackend`, which holds all that an engine needs from `torch.cuda` around
a capture, and nothing else. On "cuda" it is `torch.cuda` itself, on "cpu" the emulator; code that
is given one runs on either without an `if`.

    graphs = graphs_for("cpu")
    g = graphs.CUDAGraph()
    with graphs.graph(g, pool=graphs.graph_pool_handle()):
        y = model(x)
    g.replay()

Running out of memory raises `torch.OutOfMemoryError` on both; a driver that has no room for a
graph's nodes raises a plain RuntimeError ("CUDA error: out of memory"). After it, as after any
exception that is no fault of CUDA, the pool can be used again. A capture that CUDA itself
invalidated has spoiled its pool for good: take a new handle.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import torch

from mini_engine.cuda.graphs import emulator

PoolHandle: TypeAlias = Any  # an opaque token: two numbers on a GPU, a `GraphPool` on a CPU


class Graph(Protocol):
    """A captured graph."""

    def replay(self) -> None: ...
    def reset(self) -> None: ...
    def pool(self) -> PoolHandle: ...
    def capture_begin(self, pool: PoolHandle = ..., capture_error_mode: str = ...) -> None: ...
    def capture_end(self) -> None: ...


class StreamLike(Protocol):
    """A stream to warm up and to capture on."""

    def wait_stream(self, stream: Any) -> None: ...
    def synchronize(self) -> None: ...


class EventLike(Protocol):
    """A moment on a stream."""

    def record(self, stream: Any = ...) -> None: ...
    def synchronize(self) -> None: ...
    def elapsed_time(self, end_event: Any) -> float: ...  # milliseconds


class NewEvent(Protocol):
    def __call__(self, enable_timing: bool = ...) -> EventLike: ...


class Capture(Protocol):
    """`with graph(g, pool=..., stream=...)`: captures its body into g."""

    def __call__(
        self,
        cuda_graph: Any,
        pool: PoolHandle = ...,
        stream: Any = ...,
        capture_error_mode: str = ...,
    ) -> AbstractContextManager[None]: ...


@dataclass(frozen=True)
class GraphBackend:
    """What capture and replay need of `torch.cuda`, under its names."""

    device: torch.device
    emulated: bool  # times measured on it say nothing about a GPU
    CUDAGraph: Callable[[], Graph]
    graph: Capture
    graph_pool_handle: Callable[[], PoolHandle]
    Stream: Callable[[], StreamLike]
    Event: NewEvent
    stream: Callable[[Any], AbstractContextManager[None]]
    current_stream: Callable[[], StreamLike]
    synchronize: Callable[[], None]
    is_current_stream_capturing: Callable[[], bool]
    mem_get_info: Callable[[], tuple[int, int]]  # (free, total) bytes
    pool_bytes: Callable[[PoolHandle], int]  # what the pool holds, used or not


def graphs_for(device: torch.device | str) -> GraphBackend:
    """The graphs of `device`: "cuda", or "cpu" for emulated ones.

    Raises ValueError for another kind of device, for "cuda" where there is none that will do, and
    for a CUDA device that is not the current one.
    """
    device = torch.device(device)
    if device.type == "cpu":
        return _emulated(device)
    if device.type != "cuda":
        raise ValueError(f"no graphs on {device}: expected cuda, or cpu for emulated ones")
    if reason := why_no_gpu():
        advice = (
            "use cpu" if torch.version.cuda else "use cpu, or a PyTorch that is built with CUDA"
        )
        raise ValueError(f"no graphs on {device}: {reason}; {advice}")
    if device.index not in (None, torch.cuda.current_device()):
        raise ValueError(f"{device} is not current: call torch.cuda.set_device({device.index})")
    return _real(device)


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


def free_bytes(backend: GraphBackend) -> int:
    """What can still be allocated: the device's free memory, and what PyTorch's cache holds."""
    free, _ = backend.mem_get_info()
    cached = torch.cuda.memory_reserved() - torch.cuda.memory_allocated()
    return free + (0 if backend.emulated else cached)


def _emulated(device: torch.device) -> GraphBackend:
    return GraphBackend(
        device=device,
        emulated=True,
        CUDAGraph=emulator.CUDAGraph,
        graph=emulator.graph,
        graph_pool_handle=emulator.graph_pool_handle,
        Stream=emulator.Stream,
        Event=emulator.Event,
        stream=emulator.stream,
        current_stream=emulator.current_stream,
        synchronize=emulator.synchronize,
        is_current_stream_capturing=emulator.is_current_stream_capturing,
        mem_get_info=emulator.mem_get_info,
        pool_bytes=emulator.pool_bytes,
    )


def _real(device: torch.device) -> GraphBackend:
    return GraphBackend(
        device=device,
        emulated=False,
        CUDAGraph=torch.cuda.CUDAGraph,
        graph=torch.cuda.graph,
        graph_pool_handle=torch.cuda.graph_pool_handle,
        Stream=torch.cuda.Stream,
        Event=torch.cuda.Event,
        stream=torch.cuda.stream,
        current_stream=torch.cuda.current_stream,
        synchronize=torch.cuda.synchronize,
        is_current_stream_capturing=torch.cuda.is_current_stream_capturing,
        mem_get_info=torch.cuda.mem_get_info,
        pool_bytes=_cuda_pool_bytes,
    )


def _cuda_pool_bytes(pool: PoolHandle) -> int:
    """Bytes of the allocator's segments that belong to a graph pool."""
    segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
    return sum(s["total_size"] for s in segments if tuple(s["segment_pool_id"]) == tuple(pool))
