"""What programmatic dependent launch takes off the boundary between two nodes of a graph.

In:  a `GraphBackend`, how many nodes, how often. Out: figures for a calibration: µs a node without
it, with it, and what it saves; None with one line why, where it cannot be had.

The node is a real kernel and a small one: the RMSNorm of one row (`kernels/norm.py`), in a chain in
which each reads what the one before wrote. With PDL a node is launched early, loads its gains and
then waits for the one before; so what is left of the boundary is what the wait costs. Both graphs
are replayed in turns, each from an idle device until it is idle again. A chain is never timed back
to back with itself: with PDL the next replay would begin inside the last one, and the overlap of
replays would look like a gain of nodes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from mini_engine.cuda.graphs.backend import Graph, GraphBackend
from mini_engine.cuda.measure.intervals import median_interval
from mini_engine.cuda.measure.our_variants import no_pdl, no_triton
from mini_engine.cuda.measure.timing import Lap, paired_laps

WIDTH = 1024  # of the row: one program, one pass, nothing that memory would slow down
PLAIN, PDL, SAVED = "norm_node_us", "norm_node_pdl_us", "pdl_saves_us"
Chain = Callable[[], object]  # queues the whole chain


def pdl_figures(backend: GraphBackend, nodes: int, rounds: int) -> dict[str, dict[str, Any]]:
    """The three figures. `nodes` so many that launching the graph is lost among them."""
    if no_triton(backend):
        return _without({}, "the chain is of Triton kernels, and Triton is not installed")
    plain = _captured(backend, norm_chain(backend, nodes, pdl=False))
    if reason := no_pdl(backend):
        alone, _ = paired_laps(
            backend, _Replays(plain, nodes), _Replays(plain, nodes), steps=nodes, rounds=rounds
        )
        plain.reset()
        device = reason.partition(":")[0]  # the rest of the reason is a variant's
        return _without({PLAIN: _figure(alone)}, f"{device}: it came with sm_90")
    early = _captured(backend, norm_chain(backend, nodes, pdl=True))
    ones, others = paired_laps(
        backend, _Replays(plain, nodes), _Replays(early, nodes), steps=nodes, rounds=rounds
    )
    plain.reset()
    early.reset()
    saved = [one.event_us - other.event_us for one, other in zip(ones, others, strict=True)]
    return {
        PLAIN: _figure(ones),
        PDL: _figure(others),
        SAVED: median_interval(saved).as_dict(),
    }


def norm_chain(backend: GraphBackend, nodes: int, *, pdl: bool) -> Chain:
    """A chain of `nodes` norms, back and forth between two rows. Compiled when this returns."""
    from mini_engine.cuda.kernels.norm import rms_norm

    rows = [torch.ones((1, WIDTH), device=backend.device, dtype=torch.bfloat16) for _ in range(2)]
    gain = torch.ones(WIDTH, device=backend.device, dtype=torch.bfloat16)

    def chain() -> None:
        for node in range(nodes):
            rms_norm(rows[(node + 1) % 2], rows[node % 2], gain, 1e-6, pdl)

    rms_norm(rows[1], rows[0], gain, 1e-6, pdl)  # a kernel must not be compiled inside a capture
    backend.synchronize()
    return chain


# ---------------------------------------------------------------- parts


@dataclass(frozen=True)
class _Replays:
    """A graph as `timing` wants it: its nodes are the steps."""

    graph: Graph
    steps_a_call: int

    def rewind(self) -> None:
        """A norm of a norm is the same norm: there is nothing to put back."""

    def step(self) -> None:
        self.graph.replay()


def _captured(backend: GraphBackend, chain: Chain) -> Graph:
    graph = backend.CUDAGraph()
    with backend.graph(graph, pool=backend.graph_pool_handle()):
        chain()
    graph.replay()
    backend.synchronize()
    return graph


def _figure(laps: list[Lap]) -> dict[str, Any]:
    return median_interval([lap.event_us for lap in laps]).as_dict()


def _without(figures: dict[str, dict[str, Any]], reason: str) -> dict[str, dict[str, Any]]:
    """None for what is missing, and why."""
    missing = {"median": None, "reason": reason}
    return {name: figures.get(name, dict(missing)) for name in (PLAIN, PDL, SAVED)}
