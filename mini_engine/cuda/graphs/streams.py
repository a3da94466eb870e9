"""Streams, events and what captures them: the emulator's idea of order.

In: who waits for whom. Out: which work belongs to the capture of this thread (`here.capture`), and
a word to the `observers` about each wait. An `Observer` can find the wait that is missing, which
the emulator itself forgives; labs/support has one.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import torch

from mini_engine.cuda.graphs.arena import GraphPool
from mini_engine.cuda.graphs.tape import HostReadGuard, Recorder, Tape
from mini_engine.cuda.graphs.threads import Underway, conflict, underway, unsafe

if TYPE_CHECKING:
    from mini_engine.cuda.graphs.emulator import CUDAGraph


class Queue:
    """Work of the device, in order. `given` counts all of it, done or not.

    It is done at once, unless somebody makes the device late (labs/support/late_device.py).
    """

    def __init__(self) -> None:
        self.late, self.given = False, 0
        self._waiting: deque[Callable[[], object]] = deque()

    @property
    def done(self) -> int:
        return self.given - len(self._waiting)

    def give(self, work: Callable[[], object]) -> None:
        """Do it now or, on a late device, when it is waited for."""
        self.given += 1
        if self.late:
            self._waiting.append(work)
        else:
            work()

    def finish(self, upto: int | None = None) -> None:
        """Do what was given first, up to this count, or all."""
        with torch._C.DisableTorchFunction():  # what is done here puts nothing into the queue
            while self._waiting and (upto is None or self.done < upto):
                self._waiting.popleft()()


queue = Queue()


class Observer(Protocol):
    """Is told who waits for whom. A mark is what it knows of a stream at one moment."""

    def marked(self, stream: Stream) -> Any: ...

    def stream_waited(self, later: Stream, mark: Any) -> None: ...

    def host_waited(self, mark: Any = None) -> None:
        """For what came before the mark, or for everything."""


observers: list[Observer] = []


class StreamCapture:
    """A capture of `graph` into `pool`, from the stream that is current when it is made."""

    def __init__(self, graph: CUDAGraph, pool: GraphPool, mode: str) -> None:
        self.graph, self.pool, self.tape = graph, pool, Tape()
        self.recorder = Recorder(self.tape, pool, is_current_stream_capturing, current_stream)
        self._underway = Underway(mode, self.recorder.refuse, self.recorder.listening)
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
            underway.append(self._underway)
        except BaseException:
            self.end()
            raise

    def end(self) -> None:
        """PyTorch is back to normal, whatever happened. An invalid capture spoils its pool, as on a
        GPU, where `CUDAGraph::capture_end` gives up before it tells the allocator."""
        try:
            self._modes.close()
        finally:
            here.capture = None
            self.pool.graphs -= 1
            if self._underway in underway:
                underway.remove(self._underway)
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


class Stream:
    """An order of work."""

    def wait_stream(self, stream: Stream) -> None:
        """While capturing: takes this stream into the capture, or joins `stream` back to it."""
        if here.capture:
            here.capture.order(self, stream)
        for observer in observers:
            observer.stream_waited(self, observer.marked(stream))

    def wait_event(self, event: Event) -> None:
        """Wait for the work before an event, as `wait_stream` does for all that a stream has got.

        An event that was never recorded has nothing before it.
        """
        event.wait(self)

    def record_event(self, event: Event | None = None) -> Event:
        """`event`, or a new one, recorded here."""
        event = event or Event()
        event.record(self)
        return event

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
        self._captured, self._after = False, 0  # the work before it, counted by the queue
        self._stream: Stream | None = None
        self._marks: dict[int, Any] = {}  # by the id of an observer

    def record(self, stream: Stream | None = None) -> None:
        """Now. In a capture it is part of the graph, and has no time."""
        self._stream = stream or here.stream
        self._captured = here.captures(self._stream)
        self._marks = {id(observer): observer.marked(self._stream) for observer in observers}
        self._seconds, self._after = None if self._captured else time.perf_counter(), queue.given

    def wait(self, stream: Stream | None = None) -> None:
        """Have `stream`, or the current one, wait for the work before this event. While capturing:
        as `Stream.wait_stream`, of the stream that it was recorded on."""
        later = stream or here.stream
        if here.capture and self._stream is not None:
            here.capture.order(later, self._stream if self._captured else OUTSIDE)
        for observer in observers:
            observer.stream_waited(later, self._marks.get(id(observer), {}))

    def query(self) -> bool:
        """Is the work before it done? Raises `CaptureError` as `synchronize` does."""
        self._ask("Event.query asks the device")
        return queue.done >= self._after

    def synchronize(self) -> None:
        """Raises `CaptureError` for an event of a capture, and where `unsafe` does."""
        self._ask("Event.synchronize waits for the device")
        queue.finish(self._after)
        for observer in observers:
            observer.host_waited(self._marks.get(id(observer), {}))

    def _ask(self, call: str) -> None:
        conflict(call) if self._captured else unsafe(call)

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


def current_stream() -> Stream:
    """The stream that this thread gives its work to."""
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
    """Does the current stream's work go into a graph?"""
    return here.captures(here.stream)
