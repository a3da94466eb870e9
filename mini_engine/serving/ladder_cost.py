"""What it costs to hold the graphs of a ladder: how many there are, capture time, memory.

In:  a model, a device, the mode, the most requests in a batch; then ladders, or a histogram.
Out: `GraphCosts` of a ladder; the curve of denser ladder against padding, time and memory.

    costs = LadderCosts(named_shape("qwen3-0.6b"), load_spec("h200"), "FULL_AND_PIECEWISE", 256)
    costs.of([1, 2, 4, 8]).capture_us
    costs.curve({33: 100, 5: 20}, max_rungs=8, top=512)

Nodes and capture time add up over graphs; activations do not: all graphs share one pool, which the
one that needs most has to itself and the others fit into.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from mini_engine.dispatch.dispatcher import BatchDescriptor, GraphDispatcher
from mini_engine.dispatch.ladder import CaptureLadder, LadderPoint, best_ladders
from mini_engine.dispatch.modes import CUDAGraphMode
from mini_engine.model.config import ModelConfig
from mini_engine.predict.capacity import activation_bytes, logit_bytes
from mini_engine.predict.hardware import DeviceSpec
from mini_engine.predict.oplists import StepShape, step_ops
from mini_engine.predict.payoff import capture_cost
from mini_engine.serving.simulate import LAUNCHED_AS, padded_reqs


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
        style: str = "fused9",
    ) -> None:
        """`decode_query_len`: 1 + speculative tokens. Limits are checked by `of`."""
        self.mode, self.max_num_seqs, self.decode_query_len = mode, max_num_seqs, decode_query_len

        @cache
        def costs_of(graph: BatchDescriptor) -> tuple[int, float, int, int]:
            """graphs, capture_us, node_bytes, pool_bytes."""
            reqs = padded_reqs(graph, 1)
            ops = step_ops(config, StepShape(graph.num_tokens, reqs, 0, 0), style)
            cost = capture_cost(ops, spec, LAUNCHED_AS[graph.mode])
            logits = reqs if graph.mode is CUDAGraphMode.FULL else 0
            pool = activation_bytes(config, graph.num_tokens) + logits * logit_bytes(config)
            return cost.graphs, cost.total_us, cost.node_bytes, pool

        self._costs_of = costs_of

    def of(self, sizes: Sequence[int]) -> GraphCosts:
        """What the graphs of these capture sizes cost. Raises ValueError as `GraphDispatcher`."""
        dispatcher = GraphDispatcher(self.mode, sizes, self.max_num_seqs, self.decode_query_len)
        descriptors = dispatcher.descriptors()
        each = [self._costs_of(graph) for graph in descriptors]
        piecewise = [graph.mode is CUDAGraphMode.PIECEWISE for graph in descriptors]
        held = sum(
            graphs for (graphs, *_), is_piece in zip(each, piecewise, strict=True) if is_piece
        )
        return GraphCosts(
            piecewise_rungs=sum(piecewise),
            piecewise_graphs=held,
            full_graphs=sum(graphs for graphs, *_ in each) - held,
            capture_us=sum(us for _, us, _, _ in each),
            node_bytes=sum(nodes for _, _, nodes, _ in each),
            pool_bytes=max((pool for *_, pool in each), default=0),
        )

    def point(self, ladder: CaptureLadder, histogram: Mapping[int, int]) -> LadderPoint:
        """A ladder with what it pads of a histogram (rows -> steps) and what its graphs cost."""
        cost = self.of(ladder)
        return LadderPoint(
            ladder, ladder.waste(histogram), cost.capture_us, float(cost.memory_bytes)
        )

    def curve(self, histogram: Mapping[int, int], max_rungs: int, top: int) -> list[LadderPoint]:
        """The best ladders of 1, 2 ... `max_rungs` rungs that end at `top`, each as a point.

        Raises ValueError as `best_ladders` does.
        """
        best = best_ladders(histogram, max_rungs, top=top)
        return [self.point(ladder, histogram) for ladder in best]
