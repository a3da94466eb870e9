"""`torch.cuda`'s graphs on a CPU: same names, same rules, same ways to go wrong.

In: code that captures and replays on a GPU. Out: the same numbers, from a tape of PyTorch ops.

    pool = emulator.graph_pool_handle()
    g = emulator.CUDAGraph()
    with emulator.graph(g, pool=pool):
        y = model(x)                 # nothing is computed; y is poison
    x.copy_(batch)
    g.replay()                       # now y holds model(batch)

It promises what `torch.cuda` does (2.11 to 2.13): nothing runs while capturing; a graph remembers
addresses, kernels and numbers, and no names, branches or attributes; what waits for the device
kills the capture, and its pool with it; graphs of one pool overwrite each other. Where a GPU stays
silent, this one speaks: results are poison until the first replay, and a capture that any exception
ended leaves no graph (a GPU keeps what was captured until then).

There is one device, and work on any stream is done by the time the call returns. So streams matter
only to a capture: it takes the work of the stream it began on and of streams that wait for it
(`side.wait_stream(current)`, a fork), which must be joined back (`current.wait_stream(side)`)
before it ends. Work on any other stream runs at once and is left out of the graph. As in
CUDA, each thread has a current stream of its own; what one thread's capture forbids the others
says `threads.py`.

Sources: torch/cuda/graphs.py and aten/src/ATen/cuda/CUDAGraph.cpp of PyTorch; CUDA C++ Programming
Guide, "Creating a Graph Using Stream Capture". `streams.py` is the order of work, `tape.py` records
ops, `arena.py` is the memory.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from mini_engine.cuda.graphs.arena import GraphPool, HostMemory
from mini_engine.cuda.graphs.streams import (
    CAPTURE_STREAM,
    DEFAULT_STREAM,
    Event,
    Stream,
    StreamCapture,
    current_stream,
    here,
    is_current_stream_capturing,
    queue,
    stream,
    synchronize,
)
from mini_engine.cuda.graphs.tape import Tape
from mini_engine.cuda.graphs.threads import CaptureError, unsafe

__all__ = [  # under the names of `torch.cuda`, but for the first
    "DEFAULT_STREAM",
    "CUDAGraph",
    "Event",
    "Stream",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "current_stream",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "mem_get_info",
    "stream",
    "synchronize",
]


class CUDAGraph:
    """Recorded ops. `replay()` runs them on whatever their addresses hold by then."""

    def __init__(self) -> None:
        self._tape: Tape | None = None
        self._pool: GraphPool | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the recorded ops, in order, without views. (The emulator's own.)"""
        return tuple(self._tape.ops) if self._tape else ()

    def capture_begin(
        self, pool: GraphPool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Record what runs from here on. Prefer `graph`, which does this.

        Raises `CaptureError` inside another capture, on the default stream, when this object
        already holds a graph, on a pool in which a capture was invalidated, and on one that is
        `orphaned`; ValueError for a mode that CUDA does not have.
        """
        _refuse_while_capturing("a capture inside a capture")
        if self._tape is not None:
            raise CaptureError(
                "This CUDAGraph instance already owns a captured graph: capture into a new one"
            )
        if here.stream is DEFAULT_STREAM:
            raise CaptureError(
                "CUDA graphs must be captured on a non-default stream: use `with graph(...)`"
            )
        pool = graph_pool_handle() if pool is None else pool
        if pool.spoiled:
            raise CaptureError(
                f"already recording to this pool: {pool.spoiled}, which invalidated a capture. "
                "Take a new graph_pool_handle()"
            )
        if pool.orphaned:
            raise CaptureError(
                "use_count > 0: the last graph of this pool is gone and a tensor still stands in "
                "its memory. Let go of the tensor, or take a new graph_pool_handle()"
            )
        StreamCapture(self, pool, capture_error_mode).begin()

    def capture_end(self) -> None:
        """Stop recording. Raises `CaptureError` if the capture was invalidated; then no graph."""
        capture = here.capture
        if capture is None or capture.graph is not self:
            raise CaptureError("capture_end() called before capture_begin()")
        if here.stream is not capture.origin:
            raise CaptureError("Capture must end on the same stream it began on")
        capture.end()
        if reason := capture.recorder.invalid:
            raise CaptureError(f"the capture was invalidated while capturing: {reason}")
        if not capture.tape.ops:
            warnings.warn("The CUDA Graph is empty: nothing ran on its stream", stacklevel=2)
        self._tape, self._pool = capture.tape, capture.pool
        self._pool.graphs += 1

    def replay(self) -> None:
        """Run the recorded ops. Raises `CaptureError` without a graph, and while capturing."""
        _refuse_while_capturing("launching a graph")
        if self._tape is None:
            raise CaptureError("replay() without a preceding successful capture: capture first")
        queue.give(self._tape.replay)

    def reset(self) -> None:
        """Forget the graph. With its last graph a pool gives back what no tensor views."""
        if self._pool is not None:
            self._pool.graphs -= 1
        self._tape, self._pool = None, None

    def pool(self) -> GraphPool:
        """The pool it draws from, for the next graph that is to share it."""
        if self._pool is None:
            raise CaptureError("pool() without a preceding successful capture: capture first")
        return self._pool

    def __del__(self) -> None:
        self.reset()


@contextmanager
def graph(
    cuda_graph: CUDAGraph,
    pool: GraphPool | None = None,
    stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:
    """`with graph(g, pool=..., stream=...)`: captures the body into `g`."""
    synchronize()
    with here.on(stream or CAPTURE_STREAM):
        cuda_graph.capture_begin(pool, capture_error_mode)
        try:
            yield
        except BaseException:
            if here.capture:
                here.capture.end()
            raise
        cuda_graph.capture_end()


def _refuse_while_capturing(what: str) -> None:
    if here.capture:
        raise here.capture.recorder.refuse(what)


# -- memory --------------------------------------------------------------------------------------


def graph_pool_handle() -> GraphPool:
    """A new pool, for `pool=` of the graphs that are to share it."""
    return GraphPool(host_memory)


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes, where only graph pools are counted as used."""
    return host_memory.capacity_bytes - host_memory.reserved_bytes, host_memory.capacity_bytes


def caching_allocator_alloc(size: int) -> int:
    """The address of `size` bytes: of the pool while this stream is capturing, else by `cudaMalloc`
    (PyTorch asks its cache first, which `torch.cuda.graph` empties before a capture)."""
    if not is_current_stream_capturing():
        unsafe(f"cudaMalloc of {size:,} bytes")
    memory = torch.empty(size, dtype=torch.uint8)
    _allocated[memory.data_ptr()] = memory
    return memory.data_ptr()


def caching_allocator_delete(mem_ptr: int) -> None:
    """Give back what `caching_allocator_alloc` gave."""
    del _allocated[mem_ptr]


_allocated: dict[int, Tensor] = {}
host_memory = HostMemory()
