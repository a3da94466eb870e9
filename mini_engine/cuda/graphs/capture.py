"""Graphs of a decoder: one a rung, captured up front, largest first, in one pool.

In: a forward pass over static inputs, and a `GraphBackend`: real CUDA graphs or emulated ones.
Out: `GraphRunner` (one graph for a whole step) and `PiecewiseGraphRunner` (graphs for what lies
between the attentions, which run live), both filled by `capture()` and run by `replay(rung)`.

What PyTorch asks of a capture is all here: a warm-up on a side stream, capture on that stream, one
memory pool, static inputs, outputs kept by whoever wants to read them, no garbage collection
meanwhile (a collected graph or tensor could free memory in the middle of a capture), no Ctrl-C in
the middle of a rung. Sources: PyTorch, "CUDA semantics: CUDA Graphs"; `capture_model` in vLLM's
`gpu_model_runner.py` for the garbage collector.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from mini_engine.cuda.attention import Attend, Attention
from mini_engine.cuda.graphs.backend import Graph, GraphBackend, PoolHandle, StreamLike
from mini_engine.cuda.graphs.interrupts import interrupts_wait
from mini_engine.cuda.inputs import StepInputs
from mini_engine.dispatch.capture_report import CaptureReport, RungReport

Forward = Callable[[int], Tensor]
Progress = Callable[[int], None]

# After a capture that CUDA gave up, PyTorch's allocator goes on asking its graph (the filter that
# `CUDAGraph::capture_begin` hands to `beginAllocateToPool` points to it; pytorch/pytorch PR 180395
# mends it): it must not be freed.
_GIVEN_UP: list[Graph] = []


class Pieces:
    """Graphs and live calls in turn: what one capture of a forward with live ops leaves."""

    def __init__(self, backend: GraphBackend, pool: PoolHandle, stream: StreamLike) -> None:
        self._backend, self._pool, self._stream = backend, pool, stream
        self.steps: list[Graph | Callable[[], object]] = []
        self._open: AbstractContextManager[None] | None = None

    @property
    def graphs(self) -> list[Graph]:
        return [step for step in self.steps if not callable(step)]

    def live(self, call: Callable[[], object]) -> None:
        """End the graph here, run `call` at each replay, and open the next graph."""
        self._end()
        self.steps.append(call)
        self._begin()

    def replay(self) -> None:
        """Everything in order."""
        for step in self.steps:
            if callable(step):
                step()
            else:
                step.replay()

    def reset(self) -> None:
        """Give the graphs back."""
        for graph in self.graphs:
            graph.reset()
        self.steps.clear()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the body; when it fails, nothing is left."""
        try:
            self._begin()
            yield
            self._end()
        except BaseException as error:
            if self._open:
                try:
                    self._open.__exit__(type(error), error, error.__traceback__)
                except RuntimeError:  # CUDA has given up this capture already; `error` tells why
                    _GIVEN_UP.append(self.graphs[-1])
            self.reset()
            raise

    def _begin(self) -> None:
        graph = self._backend.CUDAGraph()
        self.steps.append(graph)
        self._open = self._backend.graph(graph, pool=self._pool, stream=self._stream)
        self._open.__enter__()

    def _end(self) -> None:
        assert self._open
        self._open.__exit__(None, None, None)
        self._open = None


@dataclass(eq=False)
class LiveAttention:
    """Attention that no graph holds: while capturing it ends the piece, at replay it runs.

    `attend` is set before each replay, made from the batch as it is (`HostAttention.begin`).
    """

    pieces: Pieces | None = None  # while capturing
    attend: Attend | None = None  # while running

    def begin(self, inputs: StepInputs) -> Attend:  # noqa: ARG002 (an Attention)
        if self.pieces is None:
            raise RuntimeError("LiveAttention belongs to PiecewiseGraphRunner, which captures it")
        return self._record

    def _record(self, q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Called once a layer while capturing. q and the output stay in the graphs' pool."""
        assert self.pieces
        out = torch.empty_like(q)

        def run() -> None:
            assert self.attend, "set attend before a replay"
            out.copy_(self.attend(q, keys, values))

        self.pieces.live(run)
        return out


@dataclass(frozen=True)
class Captured:
    """One rung."""

    pieces: Pieces
    output: Tensor  # in the graphs' memory: the next replay of any rung overwrites it


class GraphRunner:
    """One graph a rung for the whole of `forward`."""

    def __init__(
        self, backend: GraphBackend, forward: Forward, sizes: Sequence[int], pool: PoolHandle
    ) -> None:
        """`forward(rung)` reads static inputs, which hold zeros for a warm-up to read."""
        self.backend, self.forward, self.pool = backend, forward, pool
        self.sizes = sorted(sizes)
        self.captured: dict[int, Captured] = {}

    def capture(self, progress: Progress | None = None) -> CaptureReport:
        """Capture every rung, largest first. A rung that finds no memory is dropped.

        An error leaves no graph behind, and goes on up; so does Ctrl-C, after the rung it meets.
        """
        before = self.backend.current_stream()
        try:
            # `torch.cuda.graph` leaves its stream current when a capture fails: hence `stream`
            with interrupts_wait() as check, no_garbage_collection(), self.backend.stream(before):
                return self._capture_ladder(check, progress or (lambda rung: None))
        except BaseException:
            self.reset()
            raise

    def replay(self, rung: int) -> Tensor:
        """Run the rung on what its static inputs hold. Raises KeyError for one not captured."""
        captured = self.captured[rung]
        captured.pieces.replay()
        return captured.output

    def reset(self) -> None:
        """Give all graphs back."""
        for captured in self.captured.values():
            captured.pieces.reset()
        self.captured.clear()

    def _capture_ladder(self, check: Callable[[], None], progress: Progress) -> CaptureReport:
        """`_capture_rung` for each of the sizes, all on one new stream: the small ones then find
        room in what the largest has made the pool take.

        A rung that finds no memory (`is_out_of_memory`) is dropped and noted in the report; any
        other error goes on up. Call `check()` before each rung, which is where Ctrl-C may end it,
        and `progress(rung)` after it, dropped or not.
        """
        report, stream = CaptureReport(), self.backend.Stream()
        for rung in reversed(self.sizes):
            check()
            try:
                report.rungs.append(self._capture_rung(rung, stream))
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
                report.dropped.append(rung)
            progress(rung)
        return report

    def _capture_rung(self, rung: int, stream: StreamLike) -> RungReport:
        """Warm up and capture on `stream`; with what it took."""
        before, began = self.backend.pool_bytes(self.pool), time.perf_counter()
        self._warm_up(rung, stream)
        captured = self._record(rung, stream)
        self.backend.synchronize()
        self.captured[rung] = captured
        return RungReport(
            rung=rung,
            graphs=len(captured.pieces.graphs),
            time_us=(time.perf_counter() - began) * 1e6,
            pool_growth_bytes=self.backend.pool_bytes(self.pool) - before,
        )

    def _warm_up(self, rung: int, stream: StreamLike) -> None:
        """`forward(rung)` once, eagerly, on `stream`: libraries load and allocate here, not later.

        `stream` first waits for the current one, which may still be writing the static inputs;
        the current one then waits for it, and the host for all.
        """
        stream.wait_stream(self.backend.current_stream())
        with self.backend.stream(stream):
            self.forward(rung)
        self.backend.current_stream().wait_stream(stream)
        self.backend.synchronize()

    def _record(self, rung: int, stream: StreamLike) -> Captured:
        """`forward(rung)` captured on `stream` into the pool of this runner, in `Pieces`.

        Nothing is computed. The output is kept where the graph will put it.
        """
        pieces = Pieces(self.backend, self.pool, stream)
        with pieces.capture():
            output = self.forward(rung)
        return Captured(pieces, output)


class PiecewiseGraphRunner(GraphRunner):
    """Graphs between the attentions. `forward(rung, attention)` gets the attention from here."""

    def __init__(
        self,
        backend: GraphBackend,
        forward: Callable[[int, Attention], Tensor],
        sizes: Sequence[int],
        pool: PoolHandle,
        warm_up_attention: Attention,
    ) -> None:
        super().__init__(backend, lambda rung: forward(rung, warm_up_attention), sizes, pool)
        self._with_attention = forward
        self._live: dict[int, LiveAttention] = {}

    def run(self, rung: int, attend: Attend) -> Tensor:
        """Replay the pieces with `attend` between them."""
        self._live[rung].attend = attend
        return self.replay(rung)

    def reset(self) -> None:
        super().reset()
        self._live.clear()

    def _record(self, rung: int, stream: StreamLike) -> Captured:
        pieces = Pieces(self.backend, self.pool, stream)
        live = LiveAttention(pieces)
        with pieces.capture():
            output = self._with_attention(rung, live)
        self._live[rung] = live
        return Captured(pieces, output)


def is_out_of_memory(error: BaseException) -> bool:
    """PyTorch's allocator has an error of its own for it; the driver, which keeps the nodes of a
    graph, gives an ordinary one (cudaErrorMemoryAllocation)."""
    return isinstance(error, torch.OutOfMemoryError) or "CUDA error: out of memory" in str(error)


@contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, then not until the end: a collection frees memory and takes a step's time."""
    enabled = gc.isenabled()
    gc.collect()
    try:
        gc.disable()
        yield
    finally:
        if enabled:
            gc.enable()
