"""Streams and events of the CPU emulator, and the capture that is under way on them.

In: the order that code asks for. Out: what the current stream is, and whether its work is recorded.

There is one device, and work on any stream is done by the time the call returns. So streams matter
only to a capture: it takes the work of the stream it began on and of streams that wait for it
(`side.wait_stream(current)`, a fork), which must be joined back (`current.wait_stream(side)`)
before it ends. Work on any other stream runs at once and is left out of the graph.

Source: CUDA C++ Programming Guide, "Creating a Graph Using Stream Capture", cross-stream
dependencies. As in CUDA, the current stream is a matter of the thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from mini_engine.cuda.graphs.arena import GraphPool
from mini_engine.cuda.graphs.tape import HostReadGuard, Recorder, Tape


class Stream:
    """An order of work. What is given to it is done by the time the call returns."""

    def wait_stream(self, stream: Stream) -> None:
        """While capturing: takes this stream into the capture, or joins `stream` back to it."""
        if here.capture:
            here.capture.order(self, stream)

    def synchronize(self) -> None:
        """Raises `CaptureError` on a stream that is capturing."""
        if here.capture and self in here.capture.streams:
            raise here.capture.recorder.refuse("Stream.synchronize waits for the device")


class Event:
    """A moment, and the time between two of them."""

    def __init__(self, enable_timing: bool = False) -> None:
        self._timed = enable_timing
        self._seconds: float | None = None

    def record(self, stream: Stream | None = None) -> None:
        """Now. In a capture it is part of the graph, and has no time."""
        self._seconds = None if _is_capturing(stream or here.stream) else time.perf_counter()

    def synchronize(self) -> None:
        """Raises `CaptureError` while capturing."""
        if here.capture:
            raise here.capture.recorder.refuse("Event.synchronize waits for the device")

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this to `end_event`. Raises RuntimeError if either has no time."""
        if not (self._timed and end_event._timed):
            raise RuntimeError("elapsed_time: both events need enable_timing=True")
        if self._seconds is None or end_event._seconds is None:
            raise RuntimeError("elapsed_time: both events must be recorded, outside a capture")
        return (end_event._seconds - self._seconds) * 1e3


def current_stream() -> Stream:
    """The stream that this thread gives its work to."""
    return here.stream


@contextmanager
def stream(stream: Stream | None) -> Iterator[None]:
    """`with stream(s)`: the work of the body goes to `s`. None changes nothing."""
    before, here.stream = here.stream, stream or here.stream
    try:
        yield
    finally:
        here.stream = before


def synchronize() -> None:
    """Raises `CaptureError` while capturing; there is nothing to wait for."""
    if here.capture:
        raise here.capture.recorder.refuse("synchronize waits for the device")


def is_current_stream_capturing() -> bool:
    """Does the current stream's work go into a graph?"""
    return _is_capturing(here.stream)


class Capture:
    """A capture of `graph` into `pool`, from the stream that is current when it is made."""

    def __init__(self, graph: object, pool: GraphPool) -> None:
        self.graph, self.pool, self.tape = graph, pool, Tape()
        self.recorder = Recorder(self.tape, pool, is_current_stream_capturing)
        self.origin = here.stream
        self.streams = {self.origin}  # whose work is captured
        self._unjoined: set[Stream] = set()
        self._modes = ExitStack()

    def begin(self) -> None:
        self.pool.graphs += 1
        try:
            self._modes.enter_context(HostReadGuard(self.recorder))
            self._modes.enter_context(self.recorder)
            here.capture = self
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """PyTorch is back to normal, whatever happened. An invalid capture spoils its pool.

        On a GPU, too: `CUDAGraph::capture_end` gives up before it tells the allocator.
        """
        try:
            self._modes.close()
        finally:
            here.capture = None
            self.pool.graphs -= 1
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


class _Here(threading.local):
    """What CUDA keeps for each thread."""

    def __init__(self) -> None:
        self.stream = DEFAULT_STREAM
        self.capture: Capture | None = None


def _is_capturing(stream: Stream) -> bool:
    return here.capture is not None and stream in here.capture.streams


DEFAULT_STREAM = Stream()
here = _Here()
