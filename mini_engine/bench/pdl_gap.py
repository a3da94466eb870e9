"""What programmatic dependent launch takes off the boundary between two nodes of a graph.

In:  a `GraphBackend`, how many nodes, how often. Out: figures for a calibration: µs a node without
     it, with it, and what it saves; or None and one line why, where it cannot be measured.

The node is a real but small kernel: the RMSNorm of one row (`kernels/norm.py`), in a chain in which
each reads what the last one wrote. With PDL a node is launched early, loads its weight and then
waits for the node before it; so the wait is what is left of the boundary. Both graphs are replayed
in turns, each from an idle device until it is idle again, never back to back with itself: with PDL
the next replay would begin inside the last one, and that overlap would be counted as saved.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mini_engine.bench.intervals import median_interval
from mini_engine.bench.timing import Lap, paired_laps
from mini_engine.cuda.graphs.backend import Graph, GraphBackend
from mini_engine.cuda.path import no_pdl, no_triton

WIDTH = 1024  # of the row: one program, one pass, nothing that memory would slow down
PLAIN, PDL, SAVED = "norm_node_us", "norm_node_pdl_us", "pdl_saves_us"


def pdl_figures(backend: GraphBackend, nodes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The three figures. Give so many `nodes` that launching the graph does not count."""
    if no_triton(backend):
        return _without({}, "the chain is of Triton kernels, and Triton is not installed")
    plain = _captured(backend, norm_chain(backend, nodes, pdl=False))
    if reason := no_pdl(backend):
        alone, _ = paired_laps(
            backend, _Replays(plain, nodes), _Replays(plain, nodes), steps=nodes, rounds=rounds
        )
        plain.reset()
        device = reason.partition(":")[0]  # the rest speaks of a variant
        return _without({PLAIN: _figure(alone)}, f"{device}: it came with sm_90")
    early = _captured(backend, norm_chain(backend, nodes, pdl=True))
    ones, others = paired_laps(
        backend, _Replays(plain, nodes), _Replays(early, nodes), steps=nodes, rounds=rounds
    )
    plain.reset()
    early.reset()
    saved = [one.event_us - other.event_us for one, other in zip(ones, others, strict=True)]
    return {PLAIN: _figure(ones), PDL: _figure(others), SAVED: median_interval(saved).as_dict()}


def norm_chain(backend: GraphBackend, nodes: int, *, pdl: bool) -> Callable[[], object]:
    """A call that queues `nodes` norms, back and forth between two rows; already compiled."""
    from mini_engine.cuda.kernels.norm import rms_norm

    rows = [torch.ones((1, WIDTH), device=backend.device, dtype=torch.bfloat16) for _ in range(2)]
    weight = torch.ones(WIDTH, device=backend.device, dtype=torch.bfloat16)

    def chain() -> None:
        for node in range(nodes):
            rms_norm(rows[(node + 1) % 2], rows[node % 2], weight, 1e-6, pdl)

    rms_norm(rows[1], rows[0], weight, 1e-6, pdl)  # not to be compiled inside the capture
    backend.synchronize()
    return chain


# ---------------------------------------------------------------- parts


@dataclass(frozen=True)
class _Replays:
    """A graph for `timing`: its nodes are the steps."""

    graph: Graph
    steps_a_call: int

    def rewind(self) -> None:
        """Nothing to put back: the norm of a norm is the same row."""

    def step(self) -> None:
        self.graph.replay()


def _captured(backend: GraphBackend, chain: Callable[[], object]) -> Graph:
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle()):
        chain()
    graph.replay()
    backend.synchronize()
    return graph


def _figure(laps: list[Lap]) -> dict[str, Any]:
    return median_interval([lap.event_us for lap in laps]).as_dict()


def _without(figures: dict[str, dict[str, Any]], reason: str) -> dict[str, dict[str, Any]]:
    """The figures, with None and the reason for those that are missing."""
    missing = {"median": None, "reason": reason}
    return {name: figures.get(name, dict(missing)) for name in (PLAIN, PDL, SAVED)}
