"""Graphs of a decoder: one for each rung, captured up front, largest first, in one pool.

Sources: PyTorch, "CUDA semantics: CUDA Graphs"; `capture_model` in vLLM's `gpu_model_runner.py`.
"""

from __future__ import annotations

import gc
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import ClassVar

import torch
from torch import Tensor

from mini_engine.cuda.attention import Attend, Attention
from mini_engine.cuda.graphs.backend import Graph, GraphBackend, PoolHandle, Stream
from mini_engine.cuda.inputs import StepInputs
from mini_engine.dispatch.capture_report import CaptureReport, RungReport

Forward = Callable[[int], Tensor]  # of a rung


class GraphRunner:
    """One graph for each rung, of the whole of `forward`."""

    def __init__(
        self, backend: GraphBackend, forward: Forward, rungs: Sequence[int], pool: PoolHandle,
        stream: Stream | None = None,
    ) -> None:  # fmt: skip
        """`forward(rung)` reads static inputs, which hold zeros during the warm-up. Ladders of one
        pool share a `stream`, too: PyTorch's allocator gives a block out again only on its stream.
        """
        self.backend, self.forward, self.pool = backend, forward, pool
        self.stream = stream or backend.Stream()
        self.rungs = sorted(rungs)
        self.captured: dict[int, Pieces] = {}

    def capture(self) -> CaptureReport:
        """Capture every rung, largest first. After any error but want of memory none is left."""
        before = self.backend.current_stream()
        try:
            # `torch.cuda.graph` leaves its stream current when a capture fails: hence `stream`
            with no_garbage_collection(), self.backend.stream(before):
                return self._capture_ladder()
        except BaseException:
            self.reset()
            raise

    def replay(self, rung: int) -> Tensor:
        """Run the rung on what its static inputs hold. Raises KeyError for one not captured."""
        pieces = self.captured[rung]
        for step in pieces.steps:
            step()
        return pieces.output

    def reset(self) -> None:
        """Give all graphs back."""
        for pieces in self.captured.values():
            pieces.reset()
        self.captured.clear()

    def _capture_ladder(self) -> CaptureReport:
        """`_capture_rung` for each of `rungs`, all on the runner's stream: the small ones then
        find room in what the largest has made the pool take.

        A rung that finds no memory (`is_out_of_memory`) is noted in the report as dropped; any
        other error is raised.
        """
        report = CaptureReport()
        for rung in reversed(self.rungs):
            try:
                report.rungs.append(self._capture_rung(rung, self.stream))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                report.dropped.append(rung)
        return report

    def _capture_rung(self, rung: int, stream: Stream) -> RungReport:
        """Warm up and capture on `stream`; returns what it took."""
        before, began = self.backend.pool_bytes(self.pool), time.perf_counter()
        self._warm_up(rung, stream)
        pieces = self._record(rung, stream)
        self.backend.synchronize()
        self.captured[rung] = pieces
        took_us = (time.perf_counter() - began) * 1e6
        grown = self.backend.pool_bytes(self.pool) - before
        return RungReport(rung, len(pieces.graphs), took_us, grown)

    def _warm_up(self, rung: int, stream: Stream) -> None:
        """`forward(rung)` once, eagerly, on `stream`: libraries load and allocate here, not later.

        `stream` first waits for the current one, which may still be writing the static inputs. In
        the end the host waits for both.
        """
        stream.wait_stream(self.backend.current_stream())
        with self.backend.stream(stream):
            self.forward(rung)
        self.backend.synchronize()

    def _record(self, rung: int, stream: Stream) -> Pieces:
        """`forward(rung)` captured on `stream` into the pool of this runner.

        Nothing is computed. `output` is kept where the graph will put it.
        """
        pieces = Pieces(self.backend, self.pool, stream)
        with pieces.capture():
            pieces.output = self.forward(rung)
        return pieces


class PiecewiseGraphRunner(GraphRunner):
    """Graphs between the attentions. `forward(rung, attention)` gets the attention from here: a
    capture ends its graph there, and a replay runs it live."""

    def __init__(
        self, backend: GraphBackend, forward: Callable[[int, Attention], Tensor],
        rungs: Sequence[int], pool: PoolHandle, stream: Stream | None = None,
    ) -> None:  # fmt: skip
        super().__init__(backend, lambda rung: forward(rung, self), rungs, pool, stream)
        self.attend: Attend | None = None  # of the batch that is running

    def run(self, rung: int, attend: Attend) -> Tensor:
        """Replay the pieces with `attend` (as from `HostAttention.begin`) between them."""
        self.attend = attend
        return self.replay(rung)

    def begin(self, inputs: StepInputs) -> Attend:  # noqa: ARG002 (an Attention)
        return self._cut

    def _cut(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Called once a layer. q and the output stay in the graphs' pool."""
        if Pieces.recording is None:  # a warm-up leaves attention out
            return q
        out = torch.empty_like(q)

        def attend_live() -> None:
            assert self.attend, "give `run` an attention"
            out.copy_(self.attend(q, keys, values))

        Pieces.recording.live(attend_live)
        return out


class Pieces:
    """What one capture leaves: graphs, with live calls between them."""

    output: Tensor  # in the graphs' memory: the next replay of any rung overwrites it
    recording: ClassVar[Pieces | None] = None  # those of the capture that is under way

    def __init__(self, backend: GraphBackend, pool: PoolHandle, stream: Stream) -> None:
        self._backend, self._pool, self._stream = backend, pool, stream
        self.graphs: list[Graph] = []
        self.steps: list[Callable[[], object]] = []  # a replay calls them in order
        self._open = ExitStack()  # holds the capture of the last graph

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the body; when it fails, nothing is left."""
        try:
            self._begin()
            Pieces.recording = self
            yield
            self._open.close()
        except BaseException as error:
            with suppress(RuntimeError):  # CUDA had given up this capture; `error` tells why
                self._open.__exit__(type(error), error, error.__traceback__)
            if is_out_of_memory(error):
                # A smaller rung comes next. PyTorch refuses it a pool that has no graph left but
                # still a tensor in it. The error holds its frames, and they hold the error and
                # such tensors: clearing the frames lets go of them.
                traceback.clear_frames(error.__traceback__)
            self._backend.failed.extend(self.graphs[-1:])
            self.reset()
            raise
        finally:
            Pieces.recording = None

    def live(self, call: Callable[[], object]) -> None:
        """End the graph here, run `call` at each replay, and open the next graph."""
        self._open.close()
        self.steps.append(call)
        self._begin()

    def reset(self) -> None:
        """Give the graphs back."""
        for graph in self.graphs:
            graph.reset()
        self.steps.clear()

    def _begin(self) -> None:
        graph = self._backend.CUDAGraph()
        self.graphs.append(graph)
        self.steps.append(graph.replay)
        # A service may load or copy in other threads: only what this one does may end the capture.
        capture = self._backend.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        self._open.enter_context(capture)


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch's allocator raises an error of its own, the driver (nodes) an ordinary one."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, then not until the end: a collection takes time, and frees memory."""
    enabled = gc.isenabled()
    gc.collect()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
