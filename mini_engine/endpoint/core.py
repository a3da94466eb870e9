"""One thread that drives the engine; many streams that an event loop reads.

In:  `open` a request, `close` it when its client has gone.
Out: a `Stream`, whose queue gets new tokens after each step, and why it ended.

Nothing here waits for a client: tokens that it does not take stay in its own stream, at most as
many as it asked for.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from functools import partial

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.endpoint.engines import Backend
from mini_engine.endpoint.metrics import Metrics
from mini_engine.engine.batch import Request, ScheduledBatch

ERROR = "error"  # why a stream ends when the engine is at fault


class Stream(asyncio.Queue[tuple[list[int], str | None]]):
    """(tokens of a step, why they were the last or None), for one reader."""

    def __init__(self, request: Request) -> None:
        super().__init__()
        self.request, self.opened = request, time.perf_counter()
        self.last, self.sent = self.opened, 0  # when it got tokens, and how many so far


class Core(threading.Thread):
    """Made inside a running event loop; `start` begins it, and `stop` ends it."""

    def __init__(self, backend: Backend, on_fault: Callable[[], object] = lambda: None) -> None:
        """`on_fault` is called in the loop when the engine has failed."""
        super().__init__(name="engine", daemon=True)
        self.steps, self.metrics, self._on_fault = backend.steps, Metrics(), on_fault
        self.streams: dict[str, Stream] = {}  # that are open
        self.fault: BaseException | None = None
        self._inbox: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()

    # ---- in the event loop

    def open(self, request: Request) -> Stream:
        """Submit a request, which the scheduler's limits allow and whose id nobody has."""
        stream = self.streams[request.request_id] = Stream(request)
        self.metrics.prompt_tokens += len(request.prompt)
        self._inbox.put(partial(self.steps.submit, request))
        return stream

    def close(self, stream: Stream, why: str) -> None:
        """Its reader has all, or wants no more: what it holds is free for the next step. `why`: how
        that is counted, if it had not ended by itself."""
        del self.streams[stream.request.request_id]
        self._inbox.put(partial(self._cancel, stream.request.request_id, why))

    def stop(self) -> None:
        self._inbox.put(None)
        self.join()

    # ---- in the thread

    def run(self) -> None:
        try:
            while self._take():
                if step := self.steps.step():
                    self._deliver(*step)
        except BaseException as error:
            self.fault = error
            self._loop.call_soon_threadsafe(self._fail)

    def _take(self) -> bool:
        """Do what the loop asks for, and wait for that while there is nothing to run."""
        wait = not self.steps.scheduler.has_unfinished
        while wait or not self._inbox.empty():
            order, wait = self._inbox.get(), False
            if order is None:
                return False
            order()
        return True

    def _cancel(self, request_id: str, why: str) -> None:
        if self.steps.cancel(request_id):
            self.metrics.ended[why] += 1

    def _deliver(self, batch: ScheduledBatch, descriptor: BatchDescriptor) -> None:
        """Count the step, and hand on, in one call of the loop, what it has added to each text."""
        now, puts, metrics = time.perf_counter(), list[Callable[[], None]](), self.metrics
        metrics.steps[descriptor.mode.name, descriptor.num_tokens] += 1
        metrics.preemptions += len(batch.preempted)
        for entry in batch.entries:
            state, stream = entry.state, self.streams.get(entry.request.request_id)
            if stream is None or len(state.output) == stream.sent:
                continue  # nobody reads it any more, or its prompt has not ended yet
            (metrics.itl if stream.sent else metrics.ttft).observe(now - stream.last)
            tokens, stream.last = state.output[stream.sent :], now
            stream.sent += len(tokens)
            metrics.generated_tokens += len(tokens)
            if state.finish_reason:
                metrics.ended[state.finish_reason] += 1
                metrics.e2e.observe(now - stream.opened)
            puts.append(partial(stream.put_nowait, (tokens, state.finish_reason)))
        self._loop.call_soon_threadsafe(lambda: [put() for put in puts])

    def _fail(self) -> None:
        for stream in self.streams.values():
            stream.put_nowait(([], ERROR))
        self._on_fault()
