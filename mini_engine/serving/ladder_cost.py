"""What it costs to hold the graphs of a ladder: how many there are, capture time, memory.

In:  a model, a device, the mode, the most requests in a batch; then ladders, or a histogram.
Out: `GraphCosts` of a ladder; the curve of denser ladder against padding, time and memory.

    costs = LadderCosts(named_shape("qwen3-0.6b"), load_spec("h200"), "FULL_AND_PIECEWISE", 256)
    costs.of([1, 2, 4, 8]).capture_us
    costs.curve({33: 100, 5: 20}, max_rungs=8, top=512)

Nodes and capture time add up over the graphs. Activations do not: all graphs share one pool, which
is as large as the graph that needs most.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, LadderPoint, best_ladders
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import ModelConfig
from mini_engine.step.capacity import step_bytes
from mini_engine.step.hardware import DeviceSpec
from mini_engine.step.oplists import step_ops
from mini_engine.step.payoff import CaptureCost, capture_cost
from mini_engine.step.step_cost import padded_step
from mini_engine.step.storage import Stored


@dataclass(frozen=True)
class GraphCosts:
    """The graphs of one ladder. A piecewise rung is a graph for each piece."""

    piecewise_rungs: int
    piecewise_graphs: int
    full_graphs: int
    capture_us: float  # warm-up, capture and instantiation
    node_bytes: int  # what the driver keeps
    pool_bytes: int  # activations and logits of the graph that needs most

    @property
    def graphs(self) -> int:
        return self.piecewise_graphs + self.full_graphs

    @property
    def memory_bytes(self) -> int:
        return self.node_bytes + self.pool_bytes


class LadderCosts:
    """Costs of ladders for one model on one device."""

    def __init__(
        self,
        config: ModelConfig,
        spec: DeviceSpec,
        mode: CUDAGraphMode | str,
        max_num_seqs: int,
        *,
        decode_query_len: int = 1,
        style: str | None = None,
        stored: Stored | None = None,
    ) -> None:
        """`decode_query_len`: 1 + speculative tokens. Limits are checked by `of`."""
        self.mode, self.max_num_seqs, self.decode_query_len = mode, max_num_seqs, decode_query_len

        @cache  # the ladders of a curve share most of their rungs
        def costs_of(graph: BatchDescriptor) -> tuple[CaptureCost, int]:
            """Of one rung: what capturing costs, and the bytes that it needs of the pool."""
            launched_as, shape = padded_step(graph, 1)
            logits = shape.num_reqs if graph.mode is CUDAGraphMode.FULL else 0
            ops = step_ops(config, shape, style or spec.ops, stored)
            cost = capture_cost(ops, spec, launched_as)
            return cost, step_bytes(config, shape.num_tokens, logits)

        self._costs_of = costs_of

    def of(self, sizes: Sequence[int]) -> GraphCosts:
        """What the graphs of these capture sizes cost. Raises ValueError as `GraphDispatcher`."""
        dispatcher = GraphDispatcher(self.mode, sizes, self.max_num_seqs, self.decode_query_len)
        rungs = [(graph.mode, *self._costs_of(graph)) for graph in dispatcher.descriptors()]
        pieces = [cost.graphs for mode, cost, _ in rungs if mode is CUDAGraphMode.PIECEWISE]
        return GraphCosts(
            piecewise_rungs=len(pieces),
            piecewise_graphs=sum(pieces),
            full_graphs=len(rungs) - len(pieces),
            capture_us=sum(cost.total_us for _, cost, _ in rungs),
            node_bytes=sum(cost.node_bytes for _, cost, _ in rungs),
            pool_bytes=max((pool for *_, pool in rungs), default=0),
        )

    def point(self, ladder: CaptureLadder, histogram: Mapping[int, int]) -> LadderPoint:
        """A ladder with what it pads of a histogram (rows -> steps) and what its graphs cost."""
        cost, waste = self.of(ladder), ladder.waste(histogram)
        return LadderPoint(ladder, waste, cost.capture_us, float(cost.memory_bytes))

    def curve(self, histogram: Mapping[int, int], max_rungs: int, top: int) -> list[LadderPoint]:
        """The best ladders of 1, 2 ... `max_rungs` rungs that end at `top`, each as a point.

        Raises ValueError as `best_ladders` does.
        """
        best = best_ladders(histogram, max_rungs, top=top)
        return [self.point(ladder, histogram) for ladder in best]
