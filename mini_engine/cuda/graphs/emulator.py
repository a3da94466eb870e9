"""`torch.cuda`'s graphs on a CPU: same names, same rules, same ways to go wrong.

    pool = emulator.graph_pool_handle()
    g = emulator.CUDAGraph()
    with emulator.graph(g, pool=pool):
        y = model(x)                 # nothing is computed; y is poison
    x.copy_(batch)
    g.replay()                       # now y holds model(batch)

As in `torch.cuda` (2.11 to 2.13), a graph remembers addresses, kernels and numbers, and no names,
branches or attributes; what waits for the device kills the capture, and its pool with it. Where a
GPU stays silent, this one speaks: results are poison until the first replay, and a capture that any
exception ended leaves no graph.

Work on any stream is done by the time the call returns. So streams matter only to a capture: it
takes the work of the stream it began on and of streams that wait for it (a fork), which must wait
back (a join) before it ends. Each thread has a current stream of its own.

Sources: torch/cuda/graphs.py and aten/src/ATen/cuda/CUDAGraph.cpp of PyTorch; CUDA C++ Programming
Guide, "Creating a Graph Using Stream Capture". `tape.py` records ops, `arena.py` is the memory.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any

from mini_engine.cuda.graphs.arena import GraphPool, host_memory
from mini_engine.cuda.graphs.tape import (
    MODES,
    CaptureError,
    HostReadGuard,
    Recorder,
    Tape,
    conflict,
    underway,
    unsafe,
)

# -- the order of work ---------------------------------------------------------------------------


class Queue:
    """The device's work, in order. It is done at once (tests/support/late_device.py: some time)."""

    def give(self, work: Callable[[], object]) -> None:
        work()

    def mark(self) -> int:
        """The work that was given so far, as a count for `finish`."""
        return 0

    def finish(self, mark: int | None = None) -> None:
        """Do what was given before the mark, or everything."""


queue = Queue()
# Each is told who waits for whom (labs/support/stream_log.py). A mark is what it knows of a stream
# at one moment.
observers: list[Any] = []


class Stream:
    def wait_stream(self, stream: Stream) -> None:
        """While capturing: takes this stream into the capture, or joins `stream` back to it."""
        if here.capture:
            here.capture.order(self, stream)
        for observer in observers:
            observer.stream_waited(self, observer.marked(stream))

    def synchronize(self) -> None:
        """Raises `CaptureError` on a stream that is capturing, and where `unsafe` does."""
        wait = conflict if here.captures(self) else unsafe
        wait("Stream.synchronize waits for the device")
        queue.finish()
        for observer in observers:
            observer.host_waited(observer.marked(self))


class Event:
    """A moment, and the time between two of them."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed = enable_timing
        self._seconds: float | None = None
        self._captured, self._after = False, 0  # `_after`: the queue's mark of the work before it
        self._stream: Stream | None = None
        self._marks: list[tuple[Any, Any]] = []

    def record(self, stream: Stream | None = None) -> None:
        """Now. In a capture it is part of the graph, and has no time."""
        self._stream = stream or here.stream
        self._captured = here.captures(self._stream)
        self._marks = [(observer, observer.marked(self._stream)) for observer in observers]
        self._seconds, self._after = None if self._captured else time.perf_counter(), queue.mark()

    def wait(self, stream: Stream | None = None) -> None:
        """Have `stream`, or the current one, wait for the work before this event, which is none if
        it was never recorded. In a capture as `Stream.wait_stream` of the stream of `record`."""
        later = stream or here.stream
        if here.capture and self._stream is not None:
            here.capture.order(later, self._stream if self._captured else OUTSIDE)
        for observer, mark in self._marks:
            observer.stream_waited(later, mark)

    def synchronize(self) -> None:
        """Raises `CaptureError` for an event of a capture, and where `unsafe` does."""
        wait = conflict if self._captured else unsafe
        wait("Event.synchronize waits for the device")
        queue.finish(self._after)
        for observer, mark in self._marks:
            observer.host_waited(mark)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this to `end_event`. Raises RuntimeError if either has no time."""
        if not (self._timed and end_event._timed):
            raise RuntimeError("elapsed_time: both events need enable_timing=True")
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("elapsed_time: both events must be recorded, outside a capture")
        return (end_event._seconds - self._seconds) * 1e3


class _Here(threading.local):
    """What CUDA keeps for each thread."""

    def __init__(self) -> None:
        self.stream = DEFAULT_STREAM
        self.capture: StreamCapture | None = None

    def captures(self, stream: Stream) -> bool:
        return self.capture is not None and stream in self.capture.streams

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before


DEFAULT_STREAM, CAPTURE_STREAM = Stream(), Stream()
OUTSIDE = Stream()  # of an event that no capture recorded: never part of one
here = _Here()


def current_stream() -> Stream:  # that this thread gives its work to
    return here.stream


def stream(stream: Stream | None) -> AbstractContextManager[None]:
    """`with stream(s)`: the work of the body goes to `s`. None changes nothing."""
    return here.on(stream or here.stream)


def synchronize() -> None:
    """Raises `CaptureError` while any thread is capturing."""
    conflict("synchronize waits for the device")
    queue.finish()
    for observer in observers:
        observer.host_waited()


def is_current_stream_capturing() -> bool:
    return here.captures(here.stream)


# -- captures and graphs ---------------------------------------------------------------------------


class StreamCapture:
    """A capture of `graph` into `pool`, from the stream that is current when it is made."""

    def __init__(self, graph: CUDAGraph, pool: GraphPool, mode: str) -> None:
        self.graph, self.pool, self.tape = graph, pool, Tape()
        listening = is_current_stream_capturing
        self.recorder = Recorder(self.tape, pool, listening, current_stream, mode)
        self.origin = here.stream
        self.streams = {self.origin}  # whose work is captured
        self._unjoined: set[Stream] = set()
        self._modes = ExitStack()

    def begin(self) -> None:
        self.pool.graphs += 1
        self._modes.enter_context(HostReadGuard(self.recorder))
        self._modes.enter_context(self.recorder)
        here.capture = self
        underway.append(self.recorder)

    def end(self) -> None:
        """PyTorch is back to normal, whatever happened. An invalid capture spoils its pool."""
        try:
            self._modes.close()
        finally:
            here.capture = None
            self.pool.graphs -= 1
            underway.remove(self.recorder)
        if self._unjoined:
            self.recorder.refuse("the end of a capture with a stream that was not joined back")
        self.pool.spoiled = self.recorder.invalid

    def order(self, later: Stream, earlier: Stream) -> None:
        """`later` waits for `earlier`: a fork, a join, or a mistake."""
        if earlier not in self.streams:
            if later in self.streams:
                raise self.recorder.refuse("waiting for a stream that is not part of the capture")
        elif later not in self.streams:
            self.streams.add(later)
            self._unjoined.add(later)
        else:
            self._unjoined.discard(earlier)


class CUDAGraph:
    """Recorded ops. `replay()` runs them on whatever their addresses hold by then."""

    def __init__(self) -> None:
        self._tape: Tape | None = None
        self._pool: GraphPool | None = None

    @property
    def ops(self) -> tuple[str, ...]:
        """The names of the recorded ops, in order, without views."""
        return tuple(self._tape.ops) if self._tape else ()

    def capture_begin(
        self, pool: GraphPool | None = None, capture_error_mode: str = "global"
    ) -> None:
        """Record what runs from here on; `graph` calls it. Raises `CaptureError` where torch.cuda
        would refuse, and ValueError for a mode that CUDA does not have."""
        _refuse_while_capturing("a capture inside a capture")
        if self._tape is not None:
            raise CaptureError("This CUDAGraph instance already owns a captured graph")
        if here.stream is DEFAULT_STREAM:
            raise CaptureError("CUDA graphs must be captured on a non-default stream")
        pool = graph_pool_handle() if pool is None else pool
        if pool.spoiled:
            raise CaptureError(f"already recording to this pool: {pool.spoiled}: take a new one")
        # `create_or_incref_pool` in CUDACachingAllocator.cpp asserts use_count > 0
        if not pool.graphs and pool.reserved_bytes:
            raise CaptureError("use_count > 0: a tensor still stands in this pool's memory")
        if capture_error_mode not in MODES:
            raise ValueError(f"capture_error_mode {capture_error_mode!r} is none of {MODES}")
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
    cuda_graph: CUDAGraph, pool: GraphPool | None = None, stream: Stream | None = None,
    capture_error_mode: str = "global",
) -> Iterator[None]:  # fmt: skip
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


graph_pool_handle = GraphPool  # a new pool, for `pool=` of the graphs that are to share it


def mem_get_info() -> tuple[int, int]:
    """(free, total) bytes, where only graph pools are counted as used."""
    return host_memory.capacity_bytes - host_memory.reserved_bytes, host_memory.capacity_bytes
