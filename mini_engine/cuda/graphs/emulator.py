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

Sources: torch/cuda/graphs.py and aten/src/ATen/cuda/CUDAGraph.cpp of PyTorch. The parts:
`tape.py` records ops, `arena.py` is the memory, `streams.py` are streams, events and captures.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from mini_engine.cuda.graphs import streams
from mini_engine.cuda.graphs.arena import GraphPool, HostMemory
from mini_engine.cuda.graphs.streams import (
    Capture,
    Event,
    Stream,
    current_stream,
    here,
    is_current_stream_capturing,
    stream,
    synchronize,
)
from mini_engine.cuda.graphs.tape import CaptureError, Tape

__all__ = [
    "CUDAGraph",
    "CaptureError",
    "Event",
    "GraphPool",
    "Stream",
    "current_stream",
    "graph",
    "graph_pool_handle",
    "is_current_stream_capturing",
    "mem_get_info",
    "memory_limit",
    "pool_bytes",
    "stream",
    "synchronize",
]

ERROR_MODES = ("global", "thread_local", "relaxed")


class CUDAGraph:
    """Recorded ops. `replay()` runs them on whatever their addresses hold by then."""

    def __init__(self) -> None:
        self._tape: Tape | None = None
        self._pool: GraphPool | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the recorded ops, in order. Views are none. (The emulator's own.)"""
        return tuple(self._tape.ops) if self._tape else ()

    def capture_begin(
        self, pool: GraphPool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Record what runs from here on. `graph` does this; rather use that.

        Raises `CaptureError` inside another capture, on the default stream, when this object holds
        a graph already, and on a pool in which a capture was invalidated.
        """
        if here.capture:
            raise here.capture.recorder.refuse("a capture inside a capture")
        if self._tape is not None:
            raise CaptureError(
                "This CUDAGraph instance already owns a captured graph: capture into a new one"
            )
        if here.stream is streams.DEFAULT_STREAM:
            raise CaptureError(
                "CUDA graphs must be captured on a non-default stream: use `with graph(...)`"
            )
        if capture_error_mode not in ERROR_MODES:
            raise CaptureError(
                f"capture_error_mode {capture_error_mode!r}: expected one of {ERROR_MODES}"
            )
        pool = graph_pool_handle() if pool is None else pool
        if pool.spoiled:
            raise CaptureError(
                f"already recording to this pool: {pool.spoiled}, which invalidated a capture. "
                "Take a new graph_pool_handle()"
            )
        Capture(self, pool).begin()

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
        if here.capture:
            raise here.capture.recorder.refuse("launching a graph")
        if self._tape is None:
            raise CaptureError("replay() without a preceding successful capture: capture first")
        self._tape.replay()

    def reset(self) -> None:
        """Forget the graph. With its last graph a pool gives back what no tensor views."""
        if self._pool is not None:
            self._pool.graphs -= 1
        self._tape, self._pool = None, None

    def pool(self) -> GraphPool:
        """The pool it draws from, for the next graph that shall share it."""
        if self._pool is None:
            raise CaptureError("pool() without a preceding successful capture: capture first")
        return self._pool

    def __del__(self) -> None:
        self.reset()


class graph:  # noqa: N801, torch.cuda's name
    """`with graph(g, pool=..., stream=...)`: captures the body into `g`."""

    default_capture_stream = Stream()

    def __init__(
        self,
        cuda_graph: CUDAGraph,
        pool: GraphPool | None = None,
        stream: Stream | None = None,
        capture_error_mode: str = "global",
    ) -> None:
        self.cuda_graph, self._pool, self._mode = cuda_graph, pool, capture_error_mode
        self._stream = streams.stream(stream or graph.default_capture_stream)

    def __enter__(self) -> None:
        synchronize()
        self._stream.__enter__()
        try:
            self.cuda_graph.capture_begin(self._pool, self._mode)
        except BaseException:
            self._stream.__exit__(None, None, None)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self.cuda_graph.capture_end()
            elif here.capture:
                here.capture.end()
        finally:
            self._stream.__exit__(None, None, None)


def graph_pool_handle() -> GraphPool:
    """A new pool, for `pool=` of the graphs that shall share it."""
    return GraphPool(_memory)


def pool_bytes(pool: GraphPool) -> int:
    """Bytes that the pool holds, used or not."""
    return pool.reserved_bytes


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes, where only graph pools are counted as used."""
    return _memory.capacity_bytes - _memory.reserved_bytes, _memory.capacity_bytes


@contextmanager
def memory_limit(capacity_bytes: int) -> Iterator[None]:
    """Makes all graph pools together fit into so much, to see what running out does."""
    before, _memory.capacity_bytes = _memory.capacity_bytes, capacity_bytes
    try:
        yield
    finally:
        _memory.capacity_bytes = before


_memory = HostMemory()
