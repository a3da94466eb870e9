"""What vLLM 0.33 does at start-up to capture its graphs, event by event: an oracle for runners.

Behaviour of `CudaGraphManager.capture`, `vllm/v1/worker/gpu/cudagraph_utils.py`. The vectors of
`tests/dispatch/test_capture_order.py` hold this function; the wings' runners are held against it.
"""

from __future__ import annotations

from collections.abc import Iterable

from mini_engine.dispatch.dispatcher import BatchDescriptor
from mini_engine.dispatch.modes import CUDAGraphMode


def capture_events(
    descriptors: Iterable[BatchDescriptor], *, breakable: bool = False
) -> list[tuple[str | int, ...]]:
    """The events, in order, for these graphs: each is warmed up eagerly, then captured.

    A FULL graph is entered from outside the forward pass, which then runs as NONE. PIECEWISE
    captures inside the forward pass: compiled, it keeps the inputs of the warm-up; `breakable`,
    it gets fresh ones, as FULL does, since a warm-up may change the state of attention.
    """
    events: list[tuple[str | int, ...]] = []
    graphs = 0
    for rung in descriptors:
        mode, tokens = rung.mode.name, rung.num_tokens
        is_full = rung.mode is CUDAGraphMode.FULL
        events += [("prepare_inputs", mode, tokens, "warmup"), ("forward", "NONE", tokens)]
        if is_full or breakable:
            events.append(("prepare_inputs", mode, tokens, "capture"))
        if is_full:
            graphs += 1
            events.append(("graph_enter", graphs, "GLOBAL_POOL"))
            events += [("forward", "NONE", tokens), ("graph_exit", graphs)]
        else:
            events.append(("forward", mode, tokens))
    return events
